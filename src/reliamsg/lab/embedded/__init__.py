"""An MQTT broker that needs no program of its own, only the Python package amqtt; the demo uses it by default."""
