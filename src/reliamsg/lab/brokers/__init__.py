"""Real brokers on this machine: Mosquitto, RabbitMQ alone and in clusters, and HAProxy in front of them."""
