// OpenAI's client for Node: a tool that it runs itself, a streamed call, a stream of text. Argument: the server's address.
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the weather in Oslo?" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const weather = ({ city }) => `Rain in ${city}`;
const runner = client.chat.completions.runTools({
  model: "fake",
  messages,
  tools: [
    {
      type: "function",
      function: { name: "weather", description: "Weather of a city.", parameters, function: weather, parse: JSON.parse },
    },
  ],
});
const answer = await runner.finalContent();

const stream = client.chat.completions.stream({
  model: "fake",
  messages,
  tools: [{ type: "function", function: { name: "weather", parameters } }],
  tool_choice: "required",
  stream_options: { include_usage: true },
});
const parts = [];
stream.on("tool_calls.function.arguments.delta", (event) => parts.push(event.arguments_delta));
const { choices, usage } = await stream.finalChatCompletion();

let text = "";
for await (const chunk of await client.chat.completions.create({ model: "fake", messages, stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
const { name, arguments: args } = choices[0].message.tool_calls[0].function;
const call = { name, arguments: args, parts, finish_reason: choices[0].finish_reason };
console.log(JSON.stringify({ answer, call, text, reasoning: usage.completion_tokens_details.reasoning_tokens }));
