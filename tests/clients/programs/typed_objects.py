"""Typed objects by a JSON schema: instructor, LangChain and Pydantic AI. Argument: the server's address."""

from __future__ import annotations

import json
import os
import sys

import instructor
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Capital(BaseModel):
    country: str
    capital: str


url = f"{sys.argv[1]}/v1"
os.environ["OPENAI_API_KEY"] = "unused"
question = "What is the capital of France? Answer in JSON."

client = instructor.from_openai(OpenAI(base_url=url, max_retries=0), mode=instructor.Mode.JSON_SCHEMA)
messages = [{"role": "user", "content": question}]
by_instructor = client.chat.completions.create(
    model="fake", messages=messages, response_model=Capital, temperature=0, max_tokens=64, max_retries=0
)
model = ChatOpenAI(model="fake", base_url=url, max_retries=0, temperature=0, max_tokens=64)
by_langchain = model.with_structured_output(Capital, method="json_schema").invoke(question)
agent = Agent(
    OpenAIChatModel("fake", provider=OpenAIProvider(base_url=url)),
    output_type=NativeOutput(Capital),
    model_settings={"temperature": 0, "max_tokens": 64},
)
by_pydantic_ai = agent.run_sync(question).output
print(
    json.dumps(
        {
            "instructor": by_instructor.model_dump(),
            "langchain": by_langchain.model_dump(),
            "pydantic_ai": by_pydantic_ai.model_dump(),
        }
    )
)
