"""MQTT 5 and 3.1.1 sites.

Nothing is published before the broker's CONNACK, and no more than the broker's Receive Maximum is in flight.

MQTT 3.1.1 cannot report why a broker closed a connection, nor that it refused a message. Mosquitto confirms messages to
a 3.1.1 client that its access rules or its size limit then drop; with MQTT 5 it reports them. Nor does 3.1.1 tell a
publisher whether anyone subscribes; with MQTT 5 some brokers do (:mod:`~reliamsg.transport.mqtt.group_prober`).

Client ids are longer than the 23 characters that a 3.1.1 broker has to allow; one with that limit refuses
the connection with that reason.
"""
