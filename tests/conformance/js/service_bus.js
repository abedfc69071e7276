// Adapter for @azure/service-bus.  node service_bus.js CONNECTION_STRING
"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");
const { serve } = require("./agent.js");

const client = new ServiceBusClient(process.argv[2], {
  // No second try: a test wants to see the first answer.
  retryOptions: { maxRetries: 0, timeoutInMs: 20000 },
});
const senders = new Map();
const receivers = new Map();
const received = new Map();
let lastToken = 0;

function sender(entity) {
  if (!senders.has(entity)) senders.set(entity, client.createSender(entity));
  return senders.get(entity);
}

function receiver(entity, remove) {
  const key = `${remove} ${entity}`;
  if (!receivers.has(key)) {
    const receiveMode = remove ? "receiveAndDelete" : "peekLock";
    receivers.set(key, client.createReceiver(entity, { receiveMode, skipParsingBodyAsJson: true, maxAutoLockRenewalDurationInMs: 0 }));
  }
  return receivers.get(key);
}

function toAzure(message) {
  return {
    body: Buffer.from(message.body, "base64"),
    messageId: message.message_id ?? undefined,
    partitionKey: message.partition_key ?? undefined,
    sessionId: message.session_id ?? undefined,
    subject: message.subject ?? undefined,
    timeToLive: message.ttl_ms ?? undefined,
    applicationProperties: message.properties,
  };
}

function fromAzure(message) {
  const token = ++lastToken;
  received.set(token, message);
  return {
    body: Buffer.from(message.body).toString("base64"),
    message_id: message.messageId ?? null,
    sequence_number: message.sequenceNumber?.toString() ?? null,
    delivery_count: message.deliveryCount ?? null,
    partition_key: message.partitionKey ?? null,
    session_id: message.sessionId ?? null,
    subject: message.subject ?? null,
    properties: message.applicationProperties ?? {},
    dead_letter_reason: message.deadLetterReason ?? null,
    dead_letter_description: message.deadLetterErrorDescription ?? null,
    dead_letter_source: message.deadLetterSource ?? null,
    token,
  };
}

serve(
  {
    async send({ entity, messages }) {
      for (const message of messages) await sender(entity).sendMessages(toAzure(message));
    },
    async send_list({ entity, messages }) {
      await sender(entity).sendMessages(messages.map(toAzure));
    },
    async send_batch({ entity, messages }) {
      const batch = await sender(entity).createMessageBatch();
      for (const message of messages) {
        if (!batch.tryAddMessage(toAzure(message))) throw new Error("the batch is full");
      }
      await sender(entity).sendMessages(batch);
    },
    async receive({ entity, count, delete: remove, wait_ms }) {
      const messages = await receiver(entity, remove).receiveMessages(count, { maxWaitTimeInMs: wait_ms });
      return messages.map(fromAzure);
    },
    async complete({ entity, token }) {
      await receiver(entity, false).completeMessage(received.get(token));
    },
    async abandon({ entity, token }) {
      await receiver(entity, false).abandonMessage(received.get(token));
    },
    async defer({ entity, token }) {
      await receiver(entity, false).deferMessage(received.get(token));
    },
    async dead_letter({ entity, token, reason, description }) {
      const options = { deadLetterReason: reason, deadLetterErrorDescription: description };
      await receiver(entity, false).deadLetterMessage(received.get(token), options);
    },
    async peek({ entity, count, start }) {
      const options = { fromSequenceNumber: Long.fromString(start) };
      const messages = await receiver(entity, false).peekMessages(count, options);
      return messages.map(fromAzure);
    },
    async schedule({ entity, messages, at_ms }) {
      await sender(entity).scheduleMessages(messages.map(toAzure), new Date(at_ms));
    },
    async accept_next_session({ entity }) {
      await client.acceptNextSession(entity);
    },
  },
  (error) => {
    const one = error.errors ? error.errors[0] : error;
    const text = String(one.message);
    // Conditions without a code of their own are told by the name that the text begins with.
    const inner = one.code === "GeneralError" ? /^\w+Error(?=: )/.exec(text)?.[0] : undefined;
    return { code: inner ?? one.code ?? one.name, name: one.name, text };
  },
);
