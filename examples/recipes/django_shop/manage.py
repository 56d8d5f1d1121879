"""A Django project that publishes orders after the database has committed them, and a command that handles them.

    $ pip install django gunicorn
    $ export SITES="dc1=amqp://localhost dc2=mqtt://localhost"
    $ python manage.py migrate
    $ gunicorn --workers 2 shop.wsgi
    $ curl --data 'reference=A-1&item=42 widgets' localhost:8000/orders
    $ python manage.py bill_orders

Environment: SITES; STATE_DIRECTORY, where the database, outboxes and inbox are.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
