"""The Responses API: agents of LangChain and Pydantic AI with a tool, whole and streamed. Argument: the address."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

QUESTION = "What is the weather in Oslo?"
BASE = f"{sys.argv[1]}/v1"


class Forecast(BaseModel):
    city: str
    degrees: int


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"Rain in {city}"


def langchain() -> dict[str, Any]:
    model = ChatOpenAI(model="fake", base_url=BASE, api_key="unused", max_retries=0, use_responses_api=True)
    chained = model.model_copy(update={"use_previous_response_id": True})
    question = {"messages": [{"role": "user", "content": QUESTION}]}
    answers = [create_agent(one, [weather]).invoke(question)["messages"] for one in (model, chained)]
    streamed = "".join(part.text for part in model.stream(QUESTION))
    return {
        "whole": [[(message.type, message.text) for message in messages] for messages in answers],
        "streamed": streamed,
    }


async def pydantic_ai() -> dict[str, Any]:
    model = OpenAIResponsesModel("fake", provider=OpenAIProvider(base_url=BASE, api_key="unused"))
    agent = Agent(model, output_type=Forecast)

    @agent.tool_plain
    def weather(city: str) -> str:
        """Weather of a city."""
        return f"Rain in {city}"

    whole = await agent.run(QUESTION)
    async with agent.run_stream(QUESTION) as result:
        streamed = await result.get_output()
    thoughts = [
        (part.provider_details or {}).get("raw_content")  # its content is the summary
        for one in whole.all_messages()
        for part in one.parts
        if part.part_kind == "thinking"
    ]
    return {"whole": whole.output.model_dump(), "streamed": streamed.model_dump(), "thoughts": thoughts}


print(json.dumps({"langchain": langchain(), "pydantic_ai": asyncio.run(pydantic_ai())}))
