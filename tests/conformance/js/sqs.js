// Adapter for @aws-sdk/client-sqs.  node sqs.js ENDPOINT
//
// One operation, `call`: the name of a command and its input. Binary attributes travel as {"base64": ...}.
"use strict";

const sqs = require("@aws-sdk/client-sqs");
const { serve } = require("./agent.js");

const client = new sqs.SQSClient({
  endpoint: process.argv[2],
  region: "us-east-1",
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
  maxAttempts: 1, // a test wants to see the first answer
});

function fromJson(key, value) {
  return value && typeof value.base64 === "string" ? Buffer.from(value.base64, "base64") : value;
}

function toJson(key, value) {
  return value && value.type === "Buffer" ? { base64: Buffer.from(value.data).toString("base64") } : value;
}

async function call({ command, input }) {
  const output = await client.send(new sqs[`${command}Command`](JSON.parse(JSON.stringify(input), fromJson)));
  delete output.$metadata;
  for (const message of output.Messages ?? []) {
    for (const attribute of Object.values(message.MessageAttributes ?? {})) {
      if (attribute.BinaryValue) attribute.BinaryValue = Buffer.from(attribute.BinaryValue);
    }
  }
  return JSON.parse(JSON.stringify(output, toJson));
}

serve({ call }, (error) => ({ code: error.name, name: error.constructor.name, text: error.message }));
