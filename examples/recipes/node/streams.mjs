// Puts messages of the plain format in order and drops duplicates, by the headers that
// docs/how-to/other-clients.md describes.

// A stream is the unit of order: the messages of one producer in one partition of one topic. Its messages are numbered
// 1, 2, 3, … in each epoch, which is one opening of the producer's outbox.
export class Streams {
  #streams = new Map();
  #deliver;
  #onGap;
  #gapTimeout;

  // `deliver(message)` gets each message once and in order. `onGap(text)` is told of messages that did not arrive within
  // `gapTimeout` milliseconds although later ones did; then the later ones are delivered.
  constructor(deliver, onGap, gapTimeout = 30_000) {
    this.#deliver = deliver;
    this.#onGap = onGap;
    this.#gapTimeout = gapTimeout;
  }

  // Takes a message in any order. `settle()` acknowledges it to the broker, once it is delivered or dropped.
  receive(headers, body, contentType, settle) {
    const [epoch, seq] = [BigInt(headers["rm-epoch"]), BigInt(headers["rm-seq"])]; // up to 64 bits
    const message = { headers, body, contentType, settle, epoch, seq };
    const name = [headers["rm-producer"], headers["rm-topic"], headers["rm-part"]].join("/");
    let stream = this.#streams.get(name);
    if (stream === undefined) {
      // Begin with the first message that arrives. To continue after a restart, load the position of the last message
      // that was handled, which your handler has stored in one transaction with its results.
      stream = { last: { epoch: message.epoch, seq: message.seq - 1n }, waiting: [], timer: null };
      this.#streams.set(name, stream);
    }
    if (compare(message, stream.last) <= 0 || stream.waiting.some((other) => compare(message, other) === 0)) {
      settle(); // a duplicate
      return;
    }
    stream.waiting.push(message);
    stream.waiting.sort(compare);
    this.#advance(name, stream);
  }

  #advance(name, stream) {
    while (stream.waiting.length > 0 && follows(stream.waiting[0], stream.last)) {
      this.#take(stream);
    }
    clearTimeout(stream.timer);
    if (stream.waiting.length > 0) {
      stream.timer = setTimeout(() => {
        const { epoch, seq } = stream.waiting[0];
        this.#onGap(`${name}: missing between ${stream.last.epoch}/${stream.last.seq} and ${epoch}/${seq}`);
        this.#take(stream);
        this.#advance(name, stream);
      }, this.#gapTimeout);
    }
  }

  #take(stream) {
    const message = stream.waiting.shift();
    stream.last = message;
    this.#deliver(message);
    message.settle();
  }
}

function compare(one, other) {
  if (one.epoch !== other.epoch) return one.epoch < other.epoch ? -1 : 1;
  return one.seq < other.seq ? -1 : one.seq > other.seq ? 1 : 0;
}

// Whether nothing is missing between two messages. The first message of an epoch says where the one before ended.
function follows(message, last) {
  if (message.epoch === last.epoch) return message.seq === last.seq + 1n;
  const [epoch, , end] = (message.headers["rm-prev"] ?? "").split(":");
  return message.seq === 1n && epoch === String(last.epoch) && end === String(last.seq);
}
