// Reads a topic that a reliamsg producer publishes with wire="plain", at an MQTT 5 broker:
//
//   $ npm install
//   $ node mqtt_consumer.mjs mqtt://localhost orders node-billing
//
// Prints a JSON object for each message.
import mqtt from "mqtt";

import { Streams } from "./streams.mjs";

const [url, topic, clientId] = process.argv.slice(2);
const client = mqtt.connect(url, {
  protocolVersion: 5,
  clientId,
  clean: false, // the broker keeps what arrives while this client is away
  properties: { sessionExpiryInterval: 0xffffffff },
});

const streams = new Streams(
  ({ headers, body, contentType }) => console.log(JSON.stringify({ headers, contentType, body: body.toString() })),
  (gap) => console.error(gap),
);
// mqtt.js takes the next message when this one is acknowledged. So a message that waits for a missing one is only in
// memory: if this process dies meanwhile, it is lost here. Store it first if that matters, or read from RabbitMQ.
client.handleMessage = ({ payload, properties }, acknowledge) => {
  streams.receive({ ...properties?.userProperties }, payload, properties?.contentType, () => {});
  acknowledge();
};
client.on("connect", () => client.subscribe(topic, { qos: 1 }, () => console.error("ready")));
client.on("error", (error) => console.error(error.message));
process.on("SIGTERM", () => client.end(false, () => process.exit(0)));
