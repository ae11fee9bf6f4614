// The AI SDK: a streamed answer of a real model. Argument: the server's address.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const provider = createOpenAICompatible({ name: "deskmate", baseURL: `${process.argv[2]}/v1` });
const prompt = "What is the capital of France?";
const result = streamText({ model: provider("fake"), prompt, temperature: 0, maxOutputTokens: 24, maxRetries: 0 });
const parts = [];
for await (const part of result.textStream) parts.push(part);
console.log(JSON.stringify({ parts, text: await result.text }));
