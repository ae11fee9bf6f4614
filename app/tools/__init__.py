"""Tools that a chat's model may call: the operator's MCP servers."""
