"""LangChain: an agent with a tool, first whole, then streamed. Argument: the server's address."""

from __future__ import annotations

import json
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return f"Rain in {city}"


model = ChatOpenAI(model="fake", base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0, stream_usage=True)
agent = create_agent(model, [weather], system_prompt="Use the tool.")
question = {"messages": [{"role": "user", "content": "What is the weather in Oslo?"}]}
whole = [(message.type, message.text) for message in agent.invoke(question)["messages"]]

parts = list(model.bind_tools([weather], tool_choice="weather", strict=True).stream("What is the weather in Oslo?"))
streamed = parts[0]
for part in parts[1:]:
    streamed = streamed + part
print(
    json.dumps(
        {
            "whole": whole,
            "streamed": [(call["name"], call["args"], call["id"]) for call in streamed.tool_calls],
            "usage": streamed.usage_metadata and streamed.usage_metadata["output_tokens"],
            "finish_reason": streamed.response_metadata["finish_reason"],
        }
    )
)
