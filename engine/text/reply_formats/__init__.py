"""Reply formats: how a model writes its thinking and its tool calls, as data that the parser and the grammar share."""
