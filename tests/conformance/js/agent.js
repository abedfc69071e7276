// What an adapter in JavaScript runs on: requests as lines of JSON on standard input, answers on standard output.
//
//   {"id": 1, "op": "send", ...}  ->  {"id": 1, "value": ...}  or  {"id": 1, "error": {"code": ..., "text": ...}}
//
// Binary values travel as base64, 64-bit numbers as decimal text. One request at a time.
"use strict";

const readline = require("node:readline");

/** Serve operations by name until standard input ends; `describe` turns an error into {code, text}. */
async function serve(operations, describe) {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    let answer;
    try {
      answer = { value: (await operations[request.op](request)) ?? null };
    } catch (error) {
      answer = { error: describe(error) };
    }
    process.stdout.write(JSON.stringify({ id: request.id, ...answer }) + "\n");
  }
  process.exit(0);
}

module.exports = { serve };
