from django.db import models


class Order(models.Model):
    reference = models.CharField(max_length=40, unique=True)
    item = models.CharField(max_length=200)
    published = models.BooleanField(default=False, db_index=True)
    """Whether the message about it is durable."""


class Invoice(models.Model):
    reference = models.CharField(max_length=40, unique=True)
    item = models.CharField(max_length=200)
