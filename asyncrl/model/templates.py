"""Chat messages -> the text that a model's chat template makes of them, as transformers renders it.

Owns the template's language: the tags, filters and functions that templates of public models use, which are
those of `transformers.PreTrainedTokenizerBase.apply_chat_template`. Imports no transformers. A template is a
program of the model folder: it runs in jinja's sandbox, and whatever it raises is an InputError.
"""

import copy
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import meta, nodes
from jinja2.exceptions import TemplateError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from asyncrl.errors import InputError, did_you_mean
from asyncrl.system.files import read_json_object, read_text

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that a template may call by name."""

GIVEN = ("messages", "tools", "documents", "add_generation_prompt", *SPECIAL_TOKENS)
"""Variables that every rendering sets."""

Message = dict[str, Any]

_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
"""Stands where the last message ends. The space tells whether the template strips its messages."""


class ChatTemplate:
    """The chat template of one model folder, compiled once. For it, now is `now`, else the present."""

    def __init__(
        self,
        source: str,
        special_tokens: dict[str, str],
        *,
        now: datetime | None = None,
        tools: list[dict[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """`tools`: JSON schemas of the tools that a conversation may call, as transformers makes them.
        `arguments`: further variables of the template (prompt.chat_template_kwargs)."""
        self.source = source
        self.special_tokens = special_tokens
        self.tools = tools
        self.arguments = dict(arguments or {})
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: (now or datetime.now()).strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InputError(f"the model folder's chat template cannot be read: {error}") from error
        _check_arguments(self.arguments, environment, source)
        # jinja keeps them as a ChainMap, of which every rendering makes a dict: half of the time of a row.
        self._template.globals = dict(self._template.globals)

    def with_tools(self, tools: list[dict[str, Any]] | None) -> "ChatTemplate":
        """The same template, compiled once, for conversations that offer other tools."""
        other = copy.copy(self)
        other.tools = tools
        return other

    def render(self, messages: list[Message]) -> str:
        """The conversation up to where the model continues.

        That is behind the header of a new assistant message or, when the last message is the assistant's,
        behind the last character of that one, which stays open. Raises InputError.
        """
        if messages[-1].get("role") == "assistant":
            return self._render_open(messages)
        return self._render(messages, add_generation_prompt=True)

    def render_all(self, messages: list[Message]) -> str:
        """The whole conversation and the header of the model's next turn. Raises InputError."""
        return self._render(messages, add_generation_prompt=True)

    def render_closed(self, messages: list[Message]) -> str:
        """The whole conversation, its last turn ended. Raises InputError."""
        return self._render(messages, add_generation_prompt=False)

    def _render_open(self, messages: list[Message]) -> str:
        """As `continue_final_message` of transformers: a mark behind the message shows where to cut."""
        last = messages[-1].get("content")
        if not isinstance(last, str) or "content" not in self.source:
            raise InputError(
                f"the last message is the assistant's, so the model continues it, but its content is "
                f"{last!r}, which cannot be continued. Expected text."
            )
        marked = copy.deepcopy(messages)
        marked[-1]["content"] = last + _MARK
        text = self._render(marked, add_generation_prompt=False)
        if last.strip() not in text or _MARK.strip() not in text:
            raise InputError(
                f"the last message is the assistant's, so the model continues it, but the chat template "
                f"changes its text {last[:80]!r}: where it ends cannot be found. Shorten it, or end the "
                f"prompt with another role."
            )
        end = text.rindex(_MARK.strip())
        keeps_spaces = text[end : end + len(_MARK)] == _MARK
        return text[:end] if keeps_spaces else text[:end].rstrip()

    def _render(self, messages: list[Message], *, add_generation_prompt: bool) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=self.tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
                **self.arguments,
            )
        except Exception as error:  # the boundary: a template is a user's program and may raise anything
            raise InputError(f"the chat template does not accept these messages: {error}") from error


def read_chat_template(
    folder: Path,
    config: dict[str, Any],
    *,
    now: datetime | None = None,
    tools: list[dict[str, Any]] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> ChatTemplate | None:
    """The template of a model folder with this tokenizer_config.json; None when it has none.

    Raises InputError when there are several and none is called "default", and for `arguments` that no
    template reads.
    """
    named = _read_named_templates(folder, config)
    if not named:
        if arguments:
            raise InputError(
                f"prompt.chat_template_kwargs sets {', '.join(arguments)}, but {folder} has no chat template "
                f"to read it. Remove prompt.chat_template_kwargs."
            )
        return None
    if "default" not in named:
        raise InputError(
            f'{folder} has the chat templates {", ".join(sorted(named))} and none is called "default". Name '
            f"the one to use so, in tokenizer_config.json or as chat_template.jinja."
        )
    special_tokens = _read_special_tokens(folder, config)
    return ChatTemplate(named["default"], special_tokens, now=now, tools=tools, arguments=arguments)


def _check_arguments(arguments: Mapping[str, Any], environment: jinja2.Environment, source: str) -> None:
    """Raises InputError for a variable that the template does not read, or that prompts set themselves."""
    if not arguments:
        return
    known = meta.find_undeclared_variables(environment.parse(source))
    free = sorted(known.difference(GIVEN, environment.globals))
    for name in arguments:
        if name in GIVEN:
            raise InputError(
                f"prompt.chat_template_kwargs sets {name}, which each prompt sets itself. Remove it."
            )
        if name not in known:
            others = f" It reads {', '.join(free)}." if free else " It reads no variable of its own."
            raise InputError(
                f"prompt.chat_template_kwargs sets {name}, which the model's chat template does not read, so "
                f"it would change nothing.{did_you_mean(name, free, others)}"
            )


def _read_named_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name. Files come before the configuration."""
    files = {"default": folder / "chat_template.jinja"}
    files |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    found = {name: _read_text(path) for name, path in files.items() if path.is_file()}
    if found:
        return found
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, dict):
        return {name: text for name, text in given.items() if isinstance(text, str)}
    if isinstance(given, list):
        return dict(_named_template(entry, folder) for entry in given)
    return {}


def _named_template(entry: Any, folder: Path) -> tuple[str, str]:
    if isinstance(entry, dict):
        name, text = entry.get("name"), entry.get("template")
        if isinstance(name, str) and isinstance(text, str):
            return name, text
    raise InputError(
        f"{folder / 'tokenizer_config.json'}: chat_template has the entry {str(entry)[:80]}, expected an "
        f'object with "name" and "template", both text.'
    )


def _read_text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _read_special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    tokens = dict(config)
    legacy = folder / "special_tokens_map.json"
    # As transformers: the older file counts only where the newer one does not list the added tokens.
    if "added_tokens_decoder" not in config:
        tokens |= read_json_object(legacy)
    contents = {name: _content(tokens.get(name)) for name in SPECIAL_TOKENS}
    return {name: content for name, content in contents.items() if content is not None}


def _content(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


class _Generation(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}`: marks what the assistant wrote, for masks of supervised
    training; here it is text like any other."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own, as in transformers: what is set inside is not seen outside.
        call: Callable[..., nodes.Call] = self.call_method
        return nodes.CallBlock(call("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
