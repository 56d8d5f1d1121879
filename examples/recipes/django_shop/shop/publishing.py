"""Publishes what the database has committed."""

from reliamsg import Producer
from shop.models import Order


def publish_order(order: Order, producer: Producer) -> None:
    """Call this after the transaction has been committed."""
    producer.publish("orders", order.item.encode(), key=order.reference)  # on disk when this returns
    Order.objects.filter(pk=order.pk).update(published=True)
