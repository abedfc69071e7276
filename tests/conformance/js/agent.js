// What an adapter in JavaScript runs on: requests as lines of JSON on standard input, answers on standard output.
//
//   {"id": 1, "client": 1, "op": "send", ...}  ->  {"id": 1, "value": ...}  or  {"id": 1, "error": {"code": ..., "text": ...}}
//
// Binary values travel as base64, 64-bit numbers as decimal text. A process has any number of clients, since the
// libraries take 0.4 s of processor time to load. "open" makes a client and is not answered; "close" drops its
// connections as the end of a process would. One request of a client at a time.
"use strict";

const { AsyncLocalStorage } = require("node:async_hooks");
const { Socket } = require("node:net");
const readline = require("node:readline");

const current = new AsyncLocalStorage(); // the client for which code runs
const connect = Socket.prototype.connect;

/** Note each socket at its client. A library may try to connect again, even when its client is closed. */
Socket.prototype.connect = function (...args) {
  const client = current.getStore();
  if (client?.closed) {
    process.nextTick(() => this.destroy(new Error("the client is closed")));
    return this;
  }
  client?.sockets.add(this);
  this.once("close", () => client?.sockets.delete(this));
  return connect.apply(this, args);
};

// A library may leave a promise behind when the connection of a closed client is gone.
let closed = false;
process.on("unhandledRejection", (error) => {
  if (!closed) throw error;
});

/** Serve until standard input ends. `open` makes the operations of a client; `describe` turns an error into {code, text}. */
async function serve(open, describe) {
  const clients = new Map();

  function answer(id, given) {
    process.stdout.write(JSON.stringify({ id, ...given }) + "\n");
  }

  async function run(operations, request) {
    try {
      answer(request.id, { value: (await operations[request.op](request)) ?? null });
    } catch (error) {
      answer(request.id, { error: describe(error) });
    }
  }

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    if (request.op === "open") {
      const made = { sockets: new Set(), closed: false, last: Promise.resolve() };
      current.run(made, () => (made.operations = open(...request.arguments)));
      clients.set(request.client, made);
      continue;
    }
    const client = clients.get(request.client);
    if (request.op === "close") {
      clients.delete(request.client);
      closed = client.closed = true;
      for (const socket of client.sockets) socket.destroy();
      answer(request.id, { value: null });
    } else {
      client.last = client.last.then(() => current.run(client, run, client.operations, request));
    }
  }
  process.exit(0);
}

module.exports = { serve };
