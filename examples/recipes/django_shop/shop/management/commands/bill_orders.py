"""Handles orders until SIGTERM: an invoice for each."""

import signal

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import close_old_connections, transaction

from reliamsg import Consumer, Message
from shop.models import Invoice


class Command(BaseCommand):
    help = "Write invoices for orders"

    def handle(self, *args: object, **options: object) -> None:
        inbox = settings.STATE_DIRECTORY / "billing.db"
        with Consumer("billing", settings.MESSAGE_SITES, topics=["orders"], inbox=inbox) as consumer:
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            consumer.run(self.bill)

    def bill(self, message: Message) -> None:
        """Returning acknowledges the message; if this raises, it is delivered again."""
        close_old_connections()  # as Django does before a request: the database may have been restarted
        with transaction.atomic():
            # After a crash a message may come twice, and so may an order that was published twice.
            invoice, created = Invoice.objects.get_or_create(
                reference=message.key, defaults={"item": message.body.decode()}
            )
        if created:
            self.stdout.write(f"invoice for {invoice.reference}: {invoice.item}")
            self.stdout.flush()
