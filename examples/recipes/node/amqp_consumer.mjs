// Reads a topic that a reliamsg producer publishes with wire="plain", at RabbitMQ:
//
//   $ npm install
//   $ node amqp_consumer.mjs amqp://localhost orders node-billing
//
// Prints a JSON object for each message.
import amqp from "amqplib";

import { Streams } from "./streams.mjs";

const [url, topic, queue] = process.argv.slice(2);
const connection = await amqp.connect(url);
const channel = await connection.createChannel();
await channel.assertExchange("reliamsg", "topic", { durable: true });
await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
await channel.bindQueue(queue, "reliamsg", topic);
await channel.prefetch(100); // at least as many as may wait for a missing one

const streams = new Streams(
  ({ headers, body, contentType }) => console.log(JSON.stringify({ headers, contentType, body: body.toString() })),
  (gap) => console.error(gap),
);
await channel.consume(queue, (delivery) => {
  if (delivery === null) process.exit(1); // the queue was deleted
  const { headers, contentType } = delivery.properties;
  streams.receive(headers, delivery.content, contentType, () => channel.ack(delivery));
});
const fail = () => process.exit(1); // restart, as after any error
connection.on("close", fail);
process.on("SIGTERM", async () => {
  connection.off("close", fail);
  await connection.close(); // what was not acknowledged comes again
  process.exit(0);
});
console.error("ready");
