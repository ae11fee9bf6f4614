"""Instructor: a typed object out of a text, by a tool and by parts of one. Argument: the server's address."""

from __future__ import annotations

import json
import sys

import instructor
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


client = instructor.from_openai(
    OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="unused", max_retries=0), mode=instructor.Mode.TOOLS
)
asked = {"model": "fake", "messages": [{"role": "user", "content": "Ada is 36."}], "max_retries": 0}
whole = client.chat.completions.create(response_model=Person, **asked)
partial = [person.model_dump() for person in client.chat.completions.create_partial(response_model=Person, **asked)]
print(json.dumps({"whole": whole.model_dump(), "partial": partial}))
