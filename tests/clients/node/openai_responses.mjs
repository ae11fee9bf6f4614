// OpenAI's client for Node, the Responses API: a tool's round trip, a stream, a parsed object, a chain that is read again
// and deleted. Argument: the server's address.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const tools = [{ type: "function", name: "weather", parameters, strict: true }];
const question = "What is the weather in Oslo?";

const called = await client.responses.create({ model: "fake", input: question, tools });
const call = called.output.find((item) => item.type === "function_call");
const output = { type: "function_call_output", call_id: call.call_id, output: `Rain in ${JSON.parse(call.arguments).city}` };
const answer = await client.responses.create({ model: "fake", input: [output], previous_response_id: called.id, tools });

const stream = client.responses.stream({ model: "fake", input: question, tools });
const parts = [];
stream.on("response.function_call_arguments.delta", (event) => parts.push(event.delta));
stream.on("response.output_text.delta", (event) => parts.push(event.delta));
const streamed = await stream.finalResponse();

const format = { type: "json_schema", name: "place", schema: parameters, strict: true };
const parsed = await client.responses.parse({ model: "fake", input: question, text: { format } });

const again = await client.responses.retrieve(answer.id);
const items = [];
for await (const item of client.responses.inputItems.list(answer.id)) items.push(item.type);
await client.responses.delete(answer.id);
const gone = await client.responses.retrieve(answer.id).catch((error) => error.status);
console.log(
  JSON.stringify({
    answer: answer.output_text,
    streamed: streamed.output_text,
    parts,
    parsed: parsed.output_parsed,
    again: again.output_text,
    items,
    gone,
  }),
);
