"""Access policy: one table of all routes of the process, ours and Gradio's, and of what each requires.

A path that is not listed answers 404, so a route that a library's update adds stays closed until it is listed here.
``tests/app/auth/test_policy.py`` walks all routes and fails on one that is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from starlette.routing import compile_path

from app.domain.accounts import Scope

#: Maximum length of a part of an address between two slashes, which is that of a file name on Linux; longer: 404.
MAX_NAME_BYTES = 255


class Access(Enum):
    """What a route requires of its caller."""

    OPEN = auto()  #: nothing: health probes, and the pages and routes for signing in
    USER = auto()  #: to be signed in (without accounts, every caller is the local user)
    WRITER = auto()  #: to be an agent or an admin: routes that change something
    DESK_READER = auto()  #: to be an admin or a viewer: routes that show other users' work
    ADMIN = auto()  #: to be an admin (the local user is one)
    METRICS = auto()  #: the metrics token (without accounts: nothing)
    VISITOR = auto()  #: the token of a visitor, who writes to an inbox from a website and has no account
    DENIED = auto()  #: closed; answers 404 like a path that does not exist


class SessionIn(Enum):
    """Where a Gradio request names its ``session_hash``, which must be the caller's own."""

    NOWHERE = auto()
    PATH = auto()
    QUERY = auto()
    BODY = auto()


class Rule:
    """One row of the table: the methods of a path, and what they require."""

    def __init__(
        self,
        methods: str,
        path: str,
        access: Access,
        *,
        session: SessionIn = SessionIn.NOWHERE,
        linkable: bool = False,
        embeddable: bool = False,
        upload: bool = False,
        form: bool = False,
        revocable: bool = False,
        scope: Scope | None = None,
        runs_endpoint: bool = False,
    ) -> None:
        """Args:
        methods: separated by spaces.
        session: where the request names its Gradio session.
        linkable: another website may link here (a read-only page); a visitor without a session is sent to sign in.
        embeddable: another website may load this as a script or in a frame, and link to it. The response says which
            websites may frame it; no other page can be framed at all.
        upload: takes a file, which may exceed the body limit and need not be JSON; the route reads it in pieces.
        form: the upload is a multipart form. Another website's form could send one without a preflight, so only
            the check of the origin keeps it out.
        revocable: the response may take long; it is cut off when the caller's session or key is revoked meanwhile.
        scope: the scope that an API key needs; None accepts no API key.
        runs_endpoint: the body names a Gradio endpoint by its ``fn_index``; an API key may run public ones only.
        """
        self.methods = frozenset(methods.split())
        self.path = path
        self.access = access
        self.session = session
        self.linkable = linkable
        self.embeddable = embeddable
        self.upload = upload
        self.form = form
        self.revocable = revocable
        self.scope = scope
        self.runs_endpoint = runs_endpoint
        self._pattern: re.Pattern[str] = compile_path(path)[0]

    def match(self, path: str) -> re.Match[str] | None:
        return self._pattern.fullmatch(path)  # with match(), the pattern's $ would also accept a trailing newline


@dataclass(frozen=True, slots=True)
class Ruling:
    """The rule that applies to a request, or, without one, the methods that the path allows."""

    rule: Rule | None
    allowed_methods: frozenset[str]


_OPEN, _USER, _WRITER, _ADMIN, _DENIED = Access.OPEN, Access.USER, Access.WRITER, Access.ADMIN, Access.DENIED
_DESK_READER, _VISITOR = Access.DESK_READER, Access.VISITOR

RULES: tuple[Rule, ...] = (
    # Probes and metrics.
    Rule("GET", "/health", _OPEN),
    Rule("GET", "/ready", _OPEN),
    Rule("GET", "/metrics", Access.METRICS),
    # The chat's own API.
    Rule("GET", "/api/openapi.json", _USER),
    Rule("POST", "/api/turns", _WRITER),
    Rule("POST", "/api/comparisons", _WRITER),
    Rule("GET", "/api/turns/{turn_id}/events", _USER, revocable=True),
    Rule("POST", "/api/turns/{turn_id}/stop", _WRITER),
    Rule("GET", "/api/events", _USER, revocable=True),
    Rule("POST", "/api/context", _WRITER),
    Rule("POST", "/api/files", _WRITER, upload=True, form=True),
    Rule("POST", "/api/context/prompt", _WRITER),
    Rule("GET", "/api/messages/{message_id}/prompt", _USER),
    Rule("DELETE", "/api/messages/{message_id}", _WRITER),
    Rule("POST", "/api/deletions/{deletion_id}/undo", _WRITER),
    Rule("POST", "/api/messages/{message_id}/edit", _WRITER),
    Rule("POST", "/api/messages/{message_id}/regenerate", _WRITER),
    Rule("POST", "/api/messages/{message_id}/continue", _WRITER),
    Rule("POST", "/api/messages/{message_id}/tools", _WRITER),
    Rule("GET", "/api/messages/{message_id}/lens", _WRITER, revocable=True),
    Rule("GET", "/api/messages/{message_id}/lens/{index}", _WRITER, revocable=True),
    Rule("POST", "/api/messages/{message_id}/branch-at", _WRITER),
    Rule("POST", "/api/messages/{message_id}/rewrite", _WRITER),
    Rule("POST", "/api/messages/{message_id}/compare", _WRITER),
    Rule("GET", "/api/messages/{message_id}/versions", _USER),
    Rule("POST", "/api/messages/{message_id}/show", _WRITER),
    Rule("POST", "/api/messages/{message_id}/branch", _WRITER),
    Rule("PUT DELETE", "/api/messages/{message_id}/feedback", _WRITER),
    Rule("GET", "/api/canned", _USER),
    Rule("POST", "/api/canned/{name}/fill", _WRITER),
    Rule("POST", "/api/prompts/{name}/fill", _USER),
    Rule("GET", "/api/tags", _USER),
    Rule("GET", "/api/presets", _USER),
    Rule("POST", "/api/presets", _WRITER),
    Rule("PUT", "/api/presets/new-chats", _WRITER),
    Rule("DELETE", "/api/presets/{preset_id}", _WRITER),
    Rule("GET", "/api/conversations", _USER),
    Rule("POST", "/api/conversations", _WRITER),
    Rule("POST", "/api/conversations/delete", _WRITER),
    Rule("POST", "/api/conversations/change", _WRITER),
    Rule("GET", "/api/folders", _USER),
    Rule("POST", "/api/folders", _WRITER),
    Rule("PATCH DELETE", "/api/folders/{folder_id}", _WRITER),
    Rule("GET", "/api/conversations/{conversation_id}", _USER),
    Rule("PATCH DELETE", "/api/conversations/{conversation_id}", _WRITER),
    Rule("POST", "/api/conversations/{conversation_id}/draft", _WRITER, revocable=True),
    Rule("POST", "/api/conversations/{conversation_id}/summary", _WRITER, revocable=True),
    Rule("POST", "/api/conversations/{conversation_id}/article", _WRITER, revocable=True),
    Rule("PUT", "/api/conversations/{conversation_id}/drafts/{draft_id}", _WRITER),
    Rule("GET", "/api/conversations/{conversation_id}/export", _USER),
    Rule("GET POST", "/api/export", _USER),
    Rule("POST", "/api/import", _WRITER, upload=True),
    # Signing in, and the caller's own account.
    Rule("GET", "/sign-in", _OPEN, linkable=True),
    Rule("GET", "/setup", _OPEN, linkable=True),
    Rule("GET", "/invitation/{token}", _OPEN, linkable=True),
    Rule("GET POST", "/api/account/sign-in", _OPEN),
    Rule("GET", "/api/account/oidc/start", _OPEN),
    Rule("GET", "/api/account/oidc/callback", _OPEN, linkable=True),
    Rule("POST", "/api/links/look", _OPEN),
    Rule("POST", "/api/links/use", _OPEN),
    Rule("GET", "/account", _USER, linkable=True),
    Rule("GET PATCH", "/api/account", _USER),
    Rule("GET", "/api/account/storage", _USER),
    Rule("DELETE", "/api/account/responses", _USER),
    Rule("POST", "/api/account/sign-out", _USER),
    Rule("POST", "/api/account/sign-out-everywhere", _USER),
    Rule("POST", "/api/account/password", _USER),
    Rule("GET POST DELETE", "/api/account/oidc", _USER),
    Rule("GET", "/api/account/sessions", _USER),
    Rule("DELETE", "/api/account/sessions/{session_id}", _USER),
    Rule("GET POST", "/api/account/keys", _USER),
    Rule("DELETE", "/api/account/keys/{key_id}", _USER),
    # All accounts, for admins.
    Rule("GET", "/api/people", _ADMIN),
    Rule("POST", "/api/people/invitations", _ADMIN),
    Rule("DELETE", "/api/people/invitations/{invitation_id}", _ADMIN),
    Rule("POST", "/api/people/local-history", _ADMIN),
    Rule("PATCH", "/api/people/{user_id}", _ADMIN),
    Rule("POST", "/api/people/{user_id}/reset-link", _ADMIN),
    Rule("GET PUT DELETE", "/api/people/{user_id}/identity", _ADMIN),
    Rule("GET DELETE", "/api/people/{user_id}/sessions", _ADMIN),
    Rule("DELETE", "/api/people/{user_id}/sessions/{session_id}", _ADMIN),
    # The engine and its model, shared by all users.
    Rule("GET", "/api/engine", _USER),
    Rule("POST", "/api/engine/sleep", _ADMIN),
    Rule("POST", "/api/engine/wake", _ADMIN),
    Rule("POST", "/api/engine/swap", _ADMIN),
    Rule("POST", "/api/engine/adapters", _ADMIN),
    Rule("DELETE", "/api/engine/adapters/{name:path}", _ADMIN),
    Rule("GET", "/api/models", _ADMIN),
    Rule("POST DELETE", "/api/models/download", _ADMIN),
    # The desk. Viewers see the agents' conversations and ratings.
    Rule("GET", "/desk", _USER, linkable=True),
    Rule("GET", "/desk/cases", _USER, linkable=True),
    Rule("GET", "/api/desk", _USER),
    Rule("GET", "/api/desk/usage", _DESK_READER),
    Rule("GET", "/api/desk/usage/csv", _DESK_READER),
    Rule("GET", "/api/desk/review", _DESK_READER),
    Rule("GET", "/api/desk/review/{message_id}", _DESK_READER),
    Rule("PUT", "/api/desk/review/{message_id}", _ADMIN),
    Rule("GET", "/api/desk/gaps", _DESK_READER),
    Rule("PUT", "/api/desk/gaps", _ADMIN),
    Rule("GET", "/api/desk/drafts", _DESK_READER),
    Rule("GET", "/api/desk/templates/{kind}", _USER),
    Rule("GET", "/api/desk/templates/{kind}/{name}/versions", _USER),
    Rule("POST", "/api/desk/templates/{kind}/{name}/try", _USER),
    Rule("PUT", "/api/desk/templates/{kind}/{name}", _ADMIN),
    Rule("POST", "/api/desk/templates/{kind}/{name}/restore", _ADMIN),
    Rule("POST", "/api/desk/templates/{kind}/{name}/remove", _ADMIN),
    Rule("GET", "/api/desk/tools", _ADMIN),
    Rule("GET", "/api/desk/backups", _ADMIN),
    Rule("GET", "/api/desk/mail", _ADMIN),
    Rule("GET", "/api/desk/audit", _ADMIN),
    Rule("GET", "/api/desk/audit/actions", _ADMIN),
    Rule("GET", "/api/desk/audit/csv", _ADMIN),
    Rule("GET", "/api/desk/people/{user_id}/data", _ADMIN),
    Rule("DELETE", "/api/desk/people/{user_id}", _ADMIN),
    # The knowledge base. Collections have rights of their own, which its queries hold.
    Rule("GET", "/api/kb/documents", _USER),
    Rule("POST", "/api/kb/documents", _WRITER, upload=True, form=True),
    Rule("GET", "/api/kb/documents/{document_id}", _USER),
    Rule("DELETE", "/api/kb/documents/{document_id}", _WRITER),
    Rule("GET", "/api/kb/documents/{document_id}/chunks", _USER),
    Rule("GET", "/api/kb/documents/{document_id}/text", _USER),
    Rule("GET", "/api/kb/collections", _USER),
    Rule("POST", "/api/kb/collections", _ADMIN),
    Rule("PATCH DELETE", "/api/kb/collections/{collection_id}", _ADMIN),
    Rule("GET", "/api/kb/collections/{collection_id}/use", _ADMIN),
    Rule("GET", "/api/kb/collections/{collection_id}/members", _ADMIN),
    Rule("PUT DELETE", "/api/kb/collections/{collection_id}/members/{member_id}", _ADMIN),
    Rule("GET", "/api/kb/articles", _USER),
    Rule("PUT DELETE", "/api/kb/articles/{article_id}", _WRITER),
    Rule("POST", "/api/kb/articles/{article_id}/publish", _WRITER),
    Rule("GET", "/api/kb/questions", _USER),
    Rule("POST", "/api/kb/questions", _WRITER),
    Rule("GET", "/api/kb/questions/file", _USER),
    Rule("DELETE", "/api/kb/questions/{question_id}", _WRITER),
    Rule("GET", "/api/kb/search", _USER),
    # Inboxes and cases. Their queries hold who is a member of which inbox; viewers read.
    Rule("GET", "/api/inboxes", _USER, scope=Scope.CASES_READ),
    Rule("POST", "/api/inboxes", _ADMIN),
    Rule("PATCH DELETE", "/api/inboxes/{inbox_id}", _ADMIN),
    Rule("POST", "/api/inboxes/{inbox_id}/secret", _ADMIN),
    Rule("PUT DELETE", "/api/inboxes/{inbox_id}/members/{member_id}", _ADMIN),
    Rule("GET DELETE", "/api/contacts/{contact_id}", _ADMIN),
    Rule("GET POST", "/api/webhooks", _ADMIN),
    Rule("PATCH DELETE", "/api/webhooks/{webhook_id}", _ADMIN),
    Rule("POST", "/api/webhooks/{webhook_id}/secret", _ADMIN),
    Rule("POST", "/api/webhooks/{webhook_id}/test", _ADMIN),
    Rule("GET", "/api/webhooks/{webhook_id}/deliveries", _ADMIN),
    Rule("POST", "/api/webhooks/{webhook_id}/deliveries/{delivery_id}/replay", _ADMIN),
    Rule("GET", "/api/cases", _USER, scope=Scope.CASES_READ),
    Rule("POST", "/api/cases", _WRITER, scope=Scope.CASES_WRITE),
    Rule("GET", "/api/cases/tags", _USER, scope=Scope.CASES_READ),
    Rule("GET", "/api/cases/events", _USER, scope=Scope.CASES_READ, revocable=True),
    Rule("GET", "/api/cases/figures", _DESK_READER),
    Rule("GET", "/api/cases/figures/csv", _DESK_READER),
    Rule("GET", "/api/cases/{case_id}", _USER, scope=Scope.CASES_READ),
    Rule("PATCH", "/api/cases/{case_id}", _WRITER, scope=Scope.CASES_WRITE),
    Rule("GET", "/api/cases/{case_id}/events", _USER, scope=Scope.CASES_READ, revocable=True),
    Rule("GET", "/api/cases/{case_id}/attachments/{attachment_id}", _USER, scope=Scope.CASES_READ),
    Rule("POST", "/api/cases/{case_id}/presence", _USER),
    Rule("POST", "/api/cases/{case_id}/messages", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/notes", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/assign", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/snooze", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/resolve", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/reopen", _WRITER, scope=Scope.CASES_WRITE),
    Rule("POST", "/api/cases/{case_id}/merge", _WRITER),
    Rule("POST", "/api/cases/{case_id}/draft", _WRITER, revocable=True),
    Rule("PUT", "/api/cases/{case_id}/drafts/{draft_id}", _WRITER),
    Rule("POST", "/api/cases/{case_id}/summary", _USER, revocable=True),
    Rule("POST", "/api/cases/{case_id}/article", _WRITER, revocable=True),
    # The widget: visitors of websites write to an inbox. The two GETs are all that another website can embed.
    Rule("GET", "/widget/{inbox}.js", _OPEN, embeddable=True),
    Rule("GET", "/widget/{inbox}", _OPEN, embeddable=True),
    Rule("POST", "/api/widget/{inbox}/sessions", _OPEN),
    Rule("POST", "/api/widget/messages", _VISITOR),
    Rule("GET", "/api/widget/events", _VISITOR, revocable=True),
    Rule("POST", "/api/widget/hand-off", _VISITOR),
    Rule("POST", "/api/widget/read", _VISITOR),
    Rule("POST", "/api/widget/rating", _VISITOR),
    Rule("PUT", "/api/widget/contact", _VISITOR),
    Rule("GET", "/api/widget/transcript", _VISITOR),
    Rule("POST", "/api/widget/attachments", _VISITOR, upload=True, form=True),
    Rule("GET", "/api/widget/attachments/{attachment_id}", _VISITOR),
    # OpenAI's API.
    Rule("GET", "/v1/models", _USER, scope=Scope.MODELS),
    Rule("GET", "/v1/models/{model:path}", _USER, scope=Scope.MODELS),
    Rule("POST", "/v1/chat/completions", _WRITER, scope=Scope.CHAT, revocable=True),
    Rule("POST", "/v1/completions", _WRITER, scope=Scope.CHAT, revocable=True),
    Rule("POST", "/v1/responses", _WRITER, scope=Scope.CHAT, revocable=True),
    Rule("GET", "/v1/responses/{response_id}", _USER, scope=Scope.CHAT),
    Rule("DELETE", "/v1/responses/{response_id}", _WRITER, scope=Scope.CHAT),
    Rule("GET", "/v1/responses/{response_id}/input_items", _USER, scope=Scope.CHAT),
    Rule("POST", "/v1/embeddings", _WRITER, scope=Scope.CHAT, revocable=True),
    Rule("POST", "/v1/tokenize", _WRITER, scope=Scope.CHAT),
    # vLLM's routes outside /v1: also listed in app.error_format.
    Rule("POST", "/tokenize", _WRITER, scope=Scope.CHAT),
    Rule("POST", "/detokenize", _WRITER, scope=Scope.CHAT),
    Rule("GET", "/version", _USER, scope=Scope.MODELS),
    Rule("GET", "/load", _USER, scope=Scope.MODELS),
    # The page's own files.
    Rule("GET", "/ui/options", _USER),
    Rule("GET", "/ui/static/{path:path}", _OPEN),
    # Gradio: the page and its assets.
    Rule("GET HEAD", "/", _USER, linkable=True),
    Rule("GET", "/config", _USER, scope=Scope.CHAT),
    Rule("GET", "/theme.css", _USER),
    Rule("GET", "/assets/{path:path}", _USER),
    Rule("GET", "/static/{path:path}", _USER),
    Rule("GET", "/svelte/{path:path}", _USER),
    Rule("GET", "/favicon.ico", _OPEN),
    Rule("GET", "/manifest.json", _USER),
    Rule("GET", "/pwa_icon", _USER),
    Rule("GET", "/robots.txt", _OPEN),
    Rule("GET", "/gradio_api/theme.css", _USER),
    Rule("GET", "/gradio_api/info", _USER, scope=Scope.CHAT),
    Rule("GET", "/gradio_api/app_id", _USER),
    Rule("GET HEAD", "/gradio_api/file={path_or_url:path}", _USER),
    # Gradio: commands. Without the session check, any user who knows a session_hash could read that session's output.
    # Those with a scope are what gradio_client requests to call /chat with an API key.
    Rule(
        "POST",
        "/gradio_api/queue/join",
        _USER,
        session=SessionIn.BODY,
        scope=Scope.CHAT,
        runs_endpoint=True,
    ),
    Rule("GET", "/gradio_api/queue/data", _USER, session=SessionIn.QUERY, revocable=True, scope=Scope.CHAT),
    Rule("POST", "/gradio_api/run/{api_name}", _USER, session=SessionIn.BODY, runs_endpoint=True),
    Rule("POST", "/gradio_api/cancel", _USER, session=SessionIn.BODY, scope=Scope.CHAT),
    Rule("POST", "/gradio_api/reset", _USER, session=SessionIn.BODY, scope=Scope.CHAT),
    Rule(
        "GET",
        "/gradio_api/heartbeat/{session_hash}",
        _USER,
        session=SessionIn.PATH,
        revocable=True,
        scope=Scope.CHAT,
    ),
    # Gradio: closed. Sign-in is our own, uploads are not accepted, and the page uses none of the rest.
    Rule("POST", "/login", _DENIED),
    Rule("GET", "/logout", _DENIED),
    Rule("GET", "/openapi.json", _DENIED),
    Rule("GET", "/monitoring", _DENIED),
    Rule("GET", "/monitoring/summary", _DENIED),
    Rule("GET", "/monitoring/{key}", _DENIED),
    Rule("GET", "/gradio_api/deep_link", _DENIED),
    Rule("GET", "/gradio_api/user", _DENIED),
    Rule("GET", "/gradio_api/login_check", _DENIED),
    Rule("GET", "/gradio_api/token", _DENIED),
    Rule("GET", "/gradio_api/dev/reload", _DENIED),
    Rule("GET", "/gradio_api/runs", _DENIED),
    Rule("POST", "/gradio_api/run-history/connect", _DENIED),
    Rule("GET", "/gradio_api/run-history/buckets", _DENIED),
    Rule("GET POST", "/gradio_api/run-history/records", _DENIED),
    Rule("GET", "/gradio_api/run-history/records/{endpoint}/{record_id}/assets/{asset_id}", _DENIED),
    Rule("GET", "/gradio_api/openapi.json", _DENIED),
    Rule("GET", "/gradio_api/queue/status", _DENIED),
    Rule("GET HEAD", "/gradio_api/proxy={url_path:path}", _DENIED),
    Rule("GET", "/gradio_api/file/{path:path}", _DENIED),
    Rule("POST", "/gradio_api/stream/{event_id}", _DENIED),
    Rule("POST", "/gradio_api/stream/{event_id}/close", _DENIED),
    Rule("GET", "/gradio_api/stream/{session_hash}/{run}/{component_id}/playlist.m3u8", _DENIED),
    Rule("GET", "/gradio_api/stream/{session_hash}/{run}/{component_id}/{segment_id}.{ext}", _DENIED),
    Rule("GET", "/gradio_api/stream/{session_hash}/{run}/{component_id}/playlist-file", _DENIED),
    Rule("POST", "/gradio_api/api/{api_name}", _DENIED),
    Rule("POST", "/gradio_api/call/{api_name}", _DENIED),
    Rule("POST", "/gradio_api/call/v2/{api_name}", _DENIED),
    Rule("GET", "/gradio_api/call/{api_name}/{event_id}", _DENIED),
    Rule("GET", "/gradio_api/call/v2/{api_name}/{event_id}", _DENIED),
    Rule("GET", "/gradio_api/startup-events", _DENIED),  # would start the loops of Gradio's queue a second time
    Rule("POST", "/gradio_api/component_server", _DENIED),
    Rule("GET", "/gradio_api/custom_component/{id}/{environment}/{type}/{file_name}", _DENIED),
    Rule("GET", "/pwa_icon/{size}", _DENIED),
    Rule("POST", "/gradio_api/upload", _DENIED),
    Rule("GET", "/gradio_api/upload_progress", _DENIED),
    Rule("POST", "/gradio_api/process_recording", _DENIED),
    Rule("POST", "/gradio_api/vibe-edit", _DENIED),
    Rule("POST", "/gradio_api/undo-vibe-edit", _DENIED),
    Rule("GET POST", "/gradio_api/vibe-code", _DENIED),
    Rule("POST", "/gradio_api/vibe-starter-queries", _DENIED),
    Rule("GET", "/gradio_api/profiling/traces", _DENIED),
    Rule("GET", "/gradio_api/profiling/summary", _DENIED),
    Rule("POST", "/gradio_api/profiling/clear", _DENIED),
)


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def rule_on(method: str, path: str) -> Ruling:
    """Finds the rule for a request. A trailing slash makes no difference, as in routing.

    No address of ours has control characters or long names, and Gradio answers 500 to some that have.
    """
    if _CONTROL.search(path) or any(len(name.encode(errors="replace")) > MAX_NAME_BYTES for name in path.split("/")):
        return Ruling(None, frozenset())
    path = path.rstrip("/") or "/"
    others: set[str] = set()
    for rule in _rules_below("/".join(path.split("/", 3)[:3])):
        if rule.match(path) is None:
            continue
        if method in rule.methods:
            return Ruling(rule, frozenset())
        if rule.access is not Access.DENIED:
            others |= rule.methods
    return Ruling(None, frozenset(others))


@lru_cache(maxsize=1024)
def _rules_below(start: str) -> tuple[Rule, ...]:
    """The rules that a path with these first two names can match, in their order. Each request asks twice."""
    literals = [(rule, rule.path.partition("{")[0]) for rule in RULES]
    return tuple(rule for rule, literal in literals if start.startswith(literal) or literal.startswith(start))


def is_embeddable(path: str) -> bool:
    """Whether another website may load what a GET of ``path`` returns as a script or in a frame."""
    rule = rule_on("GET", path).rule
    return rule is not None and rule.embeddable


def takes_api_key(method: str, path: str) -> bool:
    """Whether an API key may open the route, given the scope."""
    rule = rule_on(method, path).rule
    return rule is not None and rule.scope is not None
