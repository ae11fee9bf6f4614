// The AI SDK: an agent with a tool, whole and streamed, and what the model thought. Argument: the server's address.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({ name: "deskmate", baseURL: `${process.argv[2]}/v1`, includeUsage: true });
const asked = {
  model: provider("fake"),
  prompt: "What is the weather in Oslo?",
  maxRetries: 0,
  stopWhen: stepCountIs(3),
  tools: {
    weather: tool({
      description: "Weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => `Rain in ${city}`,
    }),
  },
};
const whole = await generateText(asked);
const streamed = streamText(asked);
const kinds = [];
for await (const part of streamed.fullStream) {
  if (part.type === "error") throw part.error;
  if (!kinds.includes(part.type)) kinds.push(part.type);
}
const summary = async (result) => {
  const steps = await result.steps;
  return {
    text: await result.text,
    thought: steps[0].reasoningText,
    calls: steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input])),
    results: steps.flatMap((step) => step.toolResults.map((one) => one.output)),
    finishReasons: steps.map((step) => step.finishReason),
    usage: (await result.totalUsage).outputTokens,
  };
};
console.log(JSON.stringify({ whole: await summary(whole), streamed: await summary(streamed), kinds }));
