// Adapter for rhea, a plain AMQP 1.0 client. Arguments of a client: HOST PORT POLICY KEY [CA]
"use strict";

const { readFileSync } = require("node:fs");
const rhea = require("rhea");
const { serve } = require("./agent.js");

/** The operations of a client. */
function open(host, port, username, password, ca) {
  const tls = ca ? { transport: "tls", ca: [readFileSync(ca)] } : {};
  const container = rhea.create_container();
  const connection = container.connect({ host, port: Number(port), username, password, reconnect: false, ...tls });
  const opened = next(connection, ["connection_open"], ["connection_error", "disconnected", "error"]);
  const lost = next(connection, [], ["connection_error", "disconnected"]);
  lost.catch(() => {}); // every request reports it
  opened.catch(() => {});
  for (const name of ["connection_error", "error", "disconnected", "protocol_error"]) connection.on(name, () => {});

  const senders = new Map();
  const receivers = new Map();
  const failures = new Map(); // by the same key, also of links that have ended
  const received = new Map();
  let lastToken = 0;
  const STATES = ["active", "deferred", "scheduled"];

  /** The context of the first of some events; the condition of a link or connection where it is one of `bad`. */
  function next(emitter, good, bad) {
    return new Promise((resolve, reject) => {
      const listeners = [];
      const done = (settle) => (context) => {
        for (const [name, listener] of listeners) emitter.removeListener(name, listener);
        settle(context);
      };
      for (const name of good) listeners.push([name, done(resolve)]);
      for (const name of bad) {
        const fail = (context) => reject(conditionOf(context, name));
        listeners.push([name, done(fail)]);
      }
      for (const [name, listener] of listeners) emitter.on(name, listener);
    });
  }

  function conditionOf(context, name) {
    const error = context?.receiver?.error ?? context?.sender?.error ?? context?.connection?.error ?? context?.error;
    return { condition: String(error?.condition ?? name), text: String(error?.description ?? error ?? name) };
  }

  async function sender(entity) {
    await opened;
    if (!senders.has(entity)) {
      const link = connection.open_sender({ target: entity.split("/Subscriptions/")[0], autosettle: true });
      link.failed = next(link, [], ["sender_error", "sender_close"]);
      link.failed.catch(() => senders.delete(entity));
      senders.set(entity, link);
      await Promise.race([next(link, ["sendable"], []), link.failed]);
    }
    return senders.get(entity);
  }

  async function receiver(entity, remove) {
    await opened;
    const key = `${remove} ${entity}`;
    if (!receivers.has(key)) await attach(key, entity, remove, {});
    return receivers.get(key);
  }

  /** Open a receiver and keep it under `key`; `options` are more of rhea's. */
  async function attach(key, source, remove, options) {
    const modes = remove ? { snd_settle_mode: 1, rcv_settle_mode: 0 } : { snd_settle_mode: 0, rcv_settle_mode: 1 };
    const link = connection.open_receiver({
      source,
      credit_window: 0,
      autoaccept: false,
      autosettle: false,
      ...modes,
      ...options,
    });
    const state = { link, buffer: [], waiting: null };
    link.on("message", ({ message, delivery }) => {
      state.buffer.push({ message, delivery });
      state.waiting?.();
    });
    state.failed = next(link, [], ["receiver_error", "receiver_close"]);
    state.failed.catch(() => receivers.delete(key));
    failures.set(key, state.failed);
    receivers.set(key, state);
    await Promise.race([next(link, ["receiver_open"], []), state.failed]);
    // An attach without a source announces a detach with the reason.
    if (!link.source?.address) await state.failed;
    return state;
  }

  const SESSION_FILTER = "com.microsoft:session-filter";
  const SESSION_FILTERS = {
    plain: (session) => session,
    go: (session) => rhea.types.wrap_described(session, 0x137000000c),
    // Sessions that several receivers share: no lock token yet.
    shared: (session) => rhea.types.wrap_described(rhea.types.wrap_list([session, null]), 0x137000000e),
    number: () => rhea.types.wrap_uint(7),
  };

  async function sendOne(link, message) {
    const annotations = {};
    if (message.partition_key != null) annotations["x-opt-partition-key"] = message.partition_key;
    if (message.scheduled_ms != null) {
      annotations["x-opt-scheduled-enqueue-time"] = rhea.types.wrap_timestamp(message.scheduled_ms);
    }
    const delivery = link.send({
      body: rhea.message.data_section(Buffer.from(message.body, "base64")),
      message_id: message.message_id ?? undefined,
      group_id: message.session_id ?? undefined,
      subject: message.subject ?? undefined,
      ttl: message.ttl_ms ?? undefined,
      message_annotations: annotations,
      application_properties: message.properties,
    });
    const answered = new Promise((resolve, reject) => {
      const look = (context) => {
        if (context.delivery !== delivery) return;
        link.removeListener("accepted", look);
        link.removeListener("rejected", look);
        const error = delivery.remote_state?.error;
        if (error) reject({ condition: error.condition, text: error.description });
        else resolve();
      };
      link.on("accepted", look);
      link.on("rejected", look);
    });
    await Promise.race([answered, link.failed]);
  }

  function fromRhea({ message, delivery }) {
    const token = ++lastToken;
    received.set(token, delivery);
    const notes = message.message_annotations ?? {};
    const content = message.body?.content ?? message.body;
    const properties = message.application_properties ?? {};
    return {
      body: Buffer.from(content).toString("base64"),
      message_id: message.message_id ?? null,
      sequence_number: notes["x-opt-sequence-number"] == null ? null : number(notes["x-opt-sequence-number"]),
      delivery_count: message.delivery_count ?? 0,
      partition_key: notes["x-opt-partition-key"] ?? null,
      session_id: message.group_id ?? null,
      subject: message.subject ?? null,
      properties,
      dead_letter_reason: properties.DeadLetterReason ?? null,
      dead_letter_description: properties.DeadLetterErrorDescription ?? null,
      dead_letter_source: notes["x-opt-deadletter-source"] ?? null,
      state: STATES[notes["x-opt-message-state"] ?? 0],
      enqueued_ms: notes["x-opt-enqueued-time"]?.getTime() ?? null,
      locked_until_ms: notes["x-opt-locked-until"]?.getTime() ?? null,
      scheduled_ms: notes["x-opt-scheduled-enqueue-time"]?.getTime() ?? null,
      token,
    };
  }

  /** Past 2^53 rhea hands out the eight bytes. */
  function number(value) {
    return Buffer.isBuffer(value) ? value.readBigInt64BE().toString() : String(value);
  }

  /** Say what becomes of a delivery and wait until the broker has settled it. */
  async function settle(entity, token, state) {
    const { link } = await receiver(entity, false);
    const delivery = received.get(token);
    const settled = new Promise((resolve) => {
      const look = (context) => {
        if (context.delivery !== delivery) return;
        link.removeListener("settled", look);
        resolve();
      };
      link.on("settled", look);
    });
    delivery.update(false, state);
    await settled;
    const error = delivery.remote_state?.error;
    if (error) throw { condition: error.condition, text: error.description };
  }

  /** An operation ends with the connection, whatever it waits for. */
  function whileConnected(operations) {
    const guard = ([name, run]) => [name, (request) => Promise.race([run(request), lost])];
    return Object.fromEntries(Object.entries(operations).map(guard));
  }

  return whileConnected({
    async send({ entity, messages }) {
      const link = await sender(entity);
      for (const message of messages) await sendOne(link, message);
    },
    async receive({ entity, count, delete: remove, wait_ms }) {
      const state = await receiver(entity, remove);
      const missing = count - state.buffer.length - state.link.credit;
      if (missing > 0) state.link.add_credit(missing);
      if (!state.buffer.length) {
        let timer;
        const arrived = new Promise((resolve) => {
          timer = setTimeout(resolve, wait_ms);
          state.waiting = resolve;
        });
        try {
          // The broker may end the link while this waits.
          await Promise.race([arrived, state.failed]);
        } finally {
          clearTimeout(timer);
          state.waiting = null;
        }
      }
      return state.buffer.splice(0, count).map(fromRhea);
    },
    async complete({ entity, token }) {
      await settle(entity, token, rhea.message.accepted().described());
    },
    async abandon({ entity, token }) {
      await settle(entity, token, rhea.message.modified({ delivery_failed: true }).described());
    },
    async accept_session({ entity, session, form, wait_ms }) {
      await opened;
      const value = SESSION_FILTERS[form](session);
      const link = `${entity} session ${++lastToken}`;
      const { link: attached } = await attach(`false ${link}`, { address: entity, filter: { [SESSION_FILTER]: value } }, false, {
        properties: { "com.microsoft:timeout": rhea.types.wrap_uint(wait_ms) },
      });
      const echo = attached.source.filter[SESSION_FILTER];
      const ticks = attached.remote.attach.properties["com.microsoft:locked-until-utc"];
      return { link, session: echo?.value ?? echo, descriptor: String(echo?.descriptor ?? ""), ticks: number(ticks) };
    },
    /** The reason for which the broker ends a link, once it does. */
    async detached({ entity }) {
      return await failures.get(`false ${entity}`).then(() => null, (error) => error.condition);
    },
    async close_link({ entity }) {
      const { link } = await receiver(entity, false);
      const closed = next(link, ["receiver_close"], []);
      receivers.delete(`false ${entity}`);
      link.close();
      await closed;
    },
    /** Abandon with annotations of the modified outcome. */
    async abandon_with({ entity, token, annotations }) {
      await settle(entity, token, rhea.message.modified({ message_annotations: annotations }).described());
    },
    async defer({ entity, token }) {
      await settle(entity, token, rhea.message.modified({ undeliverable_here: true }).described());
    },
    async dead_letter({ entity, token, reason, description }) {
      const info = { DeadLetterReason: reason, DeadLetterErrorDescription: description };
      const error = { condition: "com.microsoft:dead-letter", description: "asked for", info };
      await settle(entity, token, rhea.message.rejected({ error }).described());
    },
  });
}

serve(open, (error) => ({ code: error.condition ?? error.name, name: error.name ?? null, text: String(error.text ?? error.message) }));
