"""Publishes orders whose process died, or whose publish failed, after the commit. Run it every minute."""

from django.conf import settings
from django.core.management.base import BaseCommand

from reliamsg import Producer
from shop.models import Order
from shop.publishing import publish_order


class Command(BaseCommand):
    help = "Publish orders that were stored but not published"

    def handle(self, *args: object, **options: object) -> None:
        # A worker may be about to publish one of these at this moment. Then it is published twice, and its key, the
        # reference, lets the consumer recognize that.
        orders = Order.objects.filter(published=False).order_by("pk")
        outbox = settings.STATE_DIRECTORY / "publish-orders.db"
        with Producer(
            f"{settings.MESSAGE_PRODUCER}-command",
            settings.MESSAGE_SITES,
            outbox=outbox,
            groups={"orders": ["billing"]},
        ) as producer:
            for order in orders:
                publish_order(order, producer)
                self.stdout.write(f"published {order.reference}")
