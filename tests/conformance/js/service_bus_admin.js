// Adapter for the admin client of @azure/service-bus. Argument of a client: CONNECTION_STRING
//
//   {"op": "call", "method": "createQueue", "args": [...]}          one answer
//   {"op": "list", "method": "listQueues", "args": [...], "size": n}   pages of so many
"use strict";

const { ServiceBusAdministrationClient } = require("@azure/service-bus");
const { serve } = require("./agent.js");

/** {"$date": text} stands for a date in arguments. */
function revive(value) {
  if (Array.isArray(value)) return value.map(revive);
  if (value === null || typeof value !== "object") return value;
  if ("$date" in value) return new Date(value.$date);
  return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, revive(one)]));
}

/** The operations of a client. */
function open(connectionString) {
  // No second try: a test wants to see the first answer.
  const client = new ServiceBusAdministrationClient(connectionString, { retryOptions: { maxRetries: 0 } });
  return {
    async call({ method, args }) {
      return client[method](...revive(args));
    },
    async list({ method, args, size }) {
      const pages = [];
      for await (const page of client[method](...args).byPage({ maxPageSize: size })) pages.push([...page]);
      return pages;
    },
  };
}

serve(open, (error)=> ({ code: String(error.code ?? error.name), name: error.name, text: String(error.message) }));
