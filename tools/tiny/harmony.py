"""Renders harmony conversations to text for training, as openai-harmony 0.0.8 renders them.

Only what the generator needs: system and developer messages, tool schemas as TypeScript, messages with
channel and recipient. A document is a list of (text, mode) parts: HIDDEN carries no loss, TRAINED does,
and HISTORY_END is an `<|end|>` in the input at which the model itself would have written `<|return|>`.
"""
import json

HIDDEN, TRAINED, HISTORY_END = 0, 1, 2
IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
CALLS = "\nCalls to these tools must go to the commentary channel: 'functions'."


def system_text(effort, date=None, identity=IDENTITY, cutoff="2024-06", has_tools=False):
    """The system message: identity, dates, effort and channels, sections joined by a blank line."""
    head = [line for line in (identity, cutoff and f"Knowledge cutoff: {cutoff}", date and f"Current date: {date}") if line]
    return "\n\n".join(["\n".join(head), f"Reasoning: {effort}", CHANNELS + (CALLS if has_tools else "")])


def default_text(schema):
    value = schema["default"]
    if isinstance(value, str):
        return value if schema.get("enum") else f'"{value}"'
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def schema_type(schema, indent=""):
    """A JSON schema as the TypeScript type that the harmony format shows to the model."""
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join("number" if k == "integer" else k for k in kind)
    if kind == "object":
        out = f"{indent}// {schema['description']}\n" if schema.get("description") else ""
        out += "{\n"
        required = schema.get("required", [])
        for key, prop in schema.get("properties", {}).items():
            if prop.get("title"):
                out += f"{indent}// {prop['title']}\n{indent}//\n"
            if prop.get("description"):
                out += f"{indent}// {prop['description']}\n"
            text = schema_type(prop, indent + "    ")
            null = " | null" if prop.get("nullable") and "null" not in text else ""
            note = f" // default: {default_text(prop)}" if "default" in prop else ""
            out += f"{indent}{key}{'' if key in required else '?'}: {text}{null},{note}\n"
        return out + indent + "}"
    if kind == "string":
        return " | ".join(f'"{v}"' for v in schema["enum"]) if schema.get("enum") else "string"
    if kind in ("number", "integer"):
        return "number"
    if kind == "boolean":
        return "boolean"
    if kind == "array":
        return schema_type(schema["items"], indent) + "[]" if "items" in schema else "Array<any>"
    return "any"


def tools_text(tools):
    """The `# Tools` section: one namespace `functions` with the given tools in their order."""
    lines = ["## functions", "", "namespace functions {", ""]
    for tool in tools:
        if tool.get("description"):
            lines += ["// " + line for line in tool["description"].split("\n")]
        params = tool.get("parameters")
        lines.append(f"type {tool['name']} = () => any;" if params is None else f"type {tool['name']} = (_: {schema_type(params)}) => any;")
        lines.append("")
    return "# Tools\n\n" + "\n".join(lines + ["} // namespace functions"])


def developer_text(instructions=None, tools=None):
    """The developer message, or None if there is nothing to say."""
    parts = []
    if instructions:
        parts.append("# Instructions\n\n" + instructions)
    if tools:
        parts.append(tools_text(tools))
    return "\n\n".join(parts) if parts else None


def message(role, content, channel=None, recipient=None, content_type=None, end="<|end|>"):
    head = "<|start|>" + role + (f" to={recipient}" if recipient else "") + (f"<|channel|>{channel}" if channel else "")
    return head + (f" {content_type}" if content_type else "") + "<|message|>" + content + end


def call_history(name, arguments):
    """A finished tool call as the package renders it."""
    return message("assistant", arguments, "commentary", f"functions.{name}", "<|constrain|>json", "<|call|>")


def tool_result(name, content):
    return message(f"functions.{name}", content, "commentary", "assistant")


def completion(final=None, analysis=None, call=None):
    """What the model writes after `<|start|>assistant`: reasoning if any, then an answer or a tool call."""
    out = ""
    if analysis:
        out = f"<|channel|>analysis<|message|>{analysis}<|end|><|start|>assistant"
    if call:
        return out + f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json<|message|>{call[1]}<|call|>"
    return out + f"<|channel|>final<|message|>{final}<|return|>"
