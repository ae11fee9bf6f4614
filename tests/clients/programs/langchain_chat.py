"""LangChain: a chain of prompt, model and parser over several inputs at once. Argument: the server's address."""

from __future__ import annotations

import json
import sys

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="fake", base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0, temperature=0, max_tokens=24
)
chain = ChatPromptTemplate.from_messages([("user", "What is the capital of {country}?")]) | model | StrOutputParser()
answers = chain.batch([{"country": "France"}, {"country": "Germany"}])
streamed = "".join(chain.stream({"country": "France"}))
print(json.dumps({"answers": answers, "streamed": streamed}))
