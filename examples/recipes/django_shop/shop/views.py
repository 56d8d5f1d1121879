from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.messages import worker_producer
from shop.models import Order
from shop.publishing import publish_order


@csrf_exempt  # an API that cookies do not authenticate
@require_POST
def create_order(request: HttpRequest) -> HttpResponse:
    try:
        with transaction.atomic():
            order = Order.objects.create(reference=request.POST["reference"], item=request.POST["item"])
            # Never publish inside the transaction: it may still be rolled back, but a message can't be. `robust`: if
            # publishing fails, the error is logged; the order is stored, and publish_orders publishes it.
            transaction.on_commit(lambda: publish_order(order, worker_producer()), robust=True)
    except IntegrityError:
        return HttpResponse("this reference exists\n", status=409)
    return HttpResponse(f"{order.reference}\n", status=201)
