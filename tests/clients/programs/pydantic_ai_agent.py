"""Pydantic AI: an agent with a tool and an output type, whole and streamed. Argument: the server's address."""

from __future__ import annotations

import asyncio
import json
import sys

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Forecast(BaseModel):
    city: str
    degrees: int


model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=f"{sys.argv[1]}/v1", api_key="unused"))
agent = Agent(model, output_type=Forecast, instructions="Use the tool.")


@agent.tool_plain
def weather(city: str) -> str:
    """Weather of a city."""
    return f"12 degrees in {city}"


async def main() -> None:
    whole = await agent.run("What is the weather in Oslo?")
    async with agent.run_stream("And in Rome?") as result:
        streamed = await result.get_output()
    thoughts = [
        part.content for message in whole.all_messages() for part in message.parts if part.part_kind == "thinking"
    ]
    print(json.dumps({"whole": whole.output.model_dump(), "streamed": streamed.model_dump(), "thoughts": thoughts}))


asyncio.run(main())
