// Adapter for @azure/service-bus. Arguments of a client: CONNECTION_STRING [tcp | websocket] [ENDPOINT]
"use strict";

const { ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");
const { serve } = require("./agent.js");

/** The operations of a client. */
function open(connectionString, transport, customEndpointAddress) {
  const webSocketOptions = transport === "websocket" ? { webSocket: require("ws") } : undefined;

  /** No second try: a test wants to see the first answer. */
  function connect(timeoutInMs) {
    const retryOptions = { maxRetries: 0, timeoutInMs };
    return new ServiceBusClient(connectionString, { retryOptions, webSocketOptions, customEndpointAddress });
  }

  const client = connect(20000);
  const patient = new Map(); // clients by the time that they wait for a session: this library knows one for all it does
  const senders = new Map();
  const receivers = new Map();
  const managers = new Map();
  const received = new Map();
  let lastToken = 0;
  let lastSession = 0;
  const RECEIVER = { skipParsingBodyAsJson: true, maxAutoLockRenewalDurationInMs: 0 };

  /** The name of a queue, or those of a topic and a subscription, as the library takes them. */
  function names(entity) {
    return entity.split("/Subscriptions/");
  }

  function sender(entity) {
    if (!senders.has(entity)) senders.set(entity, client.createSender(names(entity)[0]));
    return senders.get(entity);
  }

  function receiver(entity, remove) {
    const key = `${remove} ${entity}`;
    if (!receivers.has(key)) {
      receivers.set(key, client.createReceiver(...names(entity), { receiveMode: modeOf(remove), ...RECEIVER }));
    }
    return receivers.get(key);
  }

  function ruleManager(entity) {
    if (!managers.has(entity)) managers.set(entity, client.createRuleManager(...names(entity)));
    return managers.get(entity);
  }

  function modeOf(remove) {
    return remove ? "receiveAndDelete" : "peekLock";
  }

  function clientFor(wait_ms) {
    if (!patient.has(wait_ms)) patient.set(wait_ms, connect(wait_ms));
    return patient.get(wait_ms);
  }

  function toAzure(message) {
    return {
      body: Buffer.from(message.body, "base64"),
      messageId: message.message_id ?? undefined,
      partitionKey: message.partition_key ?? undefined,
      sessionId: message.session_id ?? undefined,
      subject: message.subject ?? undefined,
      timeToLive: message.ttl_ms ?? undefined,
      scheduledEnqueueTimeUtc: message.scheduled_ms == null ? undefined : new Date(message.scheduled_ms),
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
      state: message.state,
      enqueued_ms: message.enqueuedTimeUtc?.getTime() ?? null,
      locked_until_ms: message.lockedUntilUtc?.getTime() ?? null,
      scheduled_ms: message.scheduledEnqueueTimeUtc?.getTime() ?? null,
      token,
    };
  }

  return {
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
    async subscribe({ entity, count, concurrent }) {
      const found = [];
      return await new Promise((resolve, reject) => {
        const subscription = receiver(entity, false).subscribe(
          {
            async processMessage(message) {
              found.push(fromAzure(message));
              // Later, when the library has completed this one.
              if (found.length === count) setImmediate(() => subscription.close().then(() => resolve(found), reject));
            },
            async processError({ error }) {
              reject(error);
            },
          },
          { maxConcurrentCalls: concurrent },
        );
      });
    },
    async complete({ entity, token }) {
      await receiver(entity, false).completeMessage(received.get(token));
    },
    async abandon({ entity, token, properties }) {
      await receiver(entity, false).abandonMessage(received.get(token), properties);
    },
    async defer({ entity, token, properties }) {
      await receiver(entity, false).deferMessage(received.get(token), properties);
    },
    async dead_letter({ entity, token, reason, description, properties }) {
      const options = { deadLetterReason: reason, deadLetterErrorDescription: description, ...properties };
      await receiver(entity, false).deadLetterMessage(received.get(token), options);
    },
    async peek({ entity, count, start }) {
      const options = { fromSequenceNumber: Long.fromString(start) };
      const messages = await receiver(entity, false).peekMessages(count, options);
      return messages.map(fromAzure);
    },
    async schedule({ entity, messages, at_ms }) {
      const numbers = await sender(entity).scheduleMessages(messages.map(toAzure), new Date(at_ms));
      return numbers.map(String);
    },
    async cancel_scheduled({ entity, numbers }) {
      await sender(entity).cancelScheduledMessages(numbers.map((number) => Long.fromString(number)));
    },
    async receive_deferred({ entity, numbers, delete: remove }) {
      const wanted = numbers.map((number) => Long.fromString(number));
      return (await receiver(entity, remove).receiveDeferredMessages(wanted)).map(fromAzure);
    },
    async renew_lock({ entity, token }) {
      return (await receiver(entity, false).renewMessageLock(received.get(token))).getTime();
    },
    async accept_session({ entity, session, delete: remove, wait_ms }) {
      const options = { receiveMode: modeOf(remove), ...RECEIVER };
      const by = clientFor(wait_ms);
      const accepted = await (session == null ? by.acceptNextSession(...names(entity), options) : by.acceptSession(...names(entity), session, options));
      const link = `${entity} session ${++lastSession}`;
      receivers.set(`false ${link}`, accepted);
      receivers.set(`true ${link}`, accepted);
      return link;
    },
    async session_facts({ entity }) {
      const session = receiver(entity, false);
      return [session.sessionId, session.sessionLockedUntilUtc.getTime()];
    },
    async renew_session({ entity }) {
      return (await receiver(entity, false).renewSessionLock()).getTime();
    },
    async session_state({ entity }) {
      const state = await receiver(entity, false).getSessionState();
      return state == null ? null : Buffer.from(state).toString("base64");
    },
    async set_session_state({ entity, state }) {
      await receiver(entity, false).setSessionState(state === null ? null : Buffer.from(state, "base64"));
    },
    async add_rule({ entity, name, filter, action }) {
      const given = typeof filter === "string" ? { sqlExpression: filter } : filter;
      await ruleManager(entity).createRule(name, given, action == null ? undefined : { sqlExpression: action });
    },
    async remove_rule({ entity, name }) {
      await ruleManager(entity).deleteRule(name);
    },
    async rules({ entity }) {
      const found = [];
      for await (const rule of ruleManager(entity).listRules()) found.push(rule);
      return found.map(({ name, filter, action }) => ({ name, filter, action }));
    },
    async close_link({ entity }) {
      await receivers.get(`false ${entity}`)?.close();
      receivers.delete(`false ${entity}`);
      receivers.delete(`true ${entity}`);
    },
  };
}

serve(open, (error) => {
  const one = error.errors ? error.errors[0] : error;
  const text = String(one.message);
  // Conditions without a code of their own are told by the name that the text begins with.
  const inner = one.code === "GeneralError" ? /^\w+Error(?=: )/.exec(text)?.[0] : undefined;
  return { code: inner ?? one.code ?? one.name, name: one.name, text };
});
