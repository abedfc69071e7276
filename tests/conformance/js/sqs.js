// Adapter for @aws-sdk/client-sqs. Argument of a client: ENDPOINT
//
// One operation, `call`: the name of a command and its input. Binary attributes travel as {"base64": ...}.
"use strict";

const sqs = require("@aws-sdk/client-sqs");
const { serve } = require("./agent.js");

function fromJson(key, value) {
  return value && typeof value.base64 === "string" ? Buffer.from(value.base64, "base64") : value;
}

function toJson(key, value) {
  return value && value.type === "Buffer" ? { base64: Buffer.from(value.data).toString("base64") } : value;
}

async function call(client, { command, input }) {
  const output = await client.send(new sqs[`${command}Command`](JSON.parse(JSON.stringify(input), fromJson)));
  delete output.$metadata;
  for (const message of output.Messages ?? []) {
    for (const attribute of Object.values(message.MessageAttributes ?? {})) {
      if (attribute.BinaryValue) attribute.BinaryValue = Buffer.from(attribute.BinaryValue);
    }
  }
  return JSON.parse(JSON.stringify(output, toJson));
}

/** The operations of a client. */
function open(endpoint) {
  const client = new sqs.SQSClient({
    endpoint,
    region: "us-east-1",
    credentials: { accessKeyId: "test", secretAccessKey: "test" },
    maxAttempts: 1, // a test wants to see the first answer
  });
  return { call: (request) => call(client, request) };
}

serve(open, (error) => ({ code: error.name, name: error.constructor.name, text: error.message }));
