// Written by scripts/api_types.py (make docs) from the JSON API's models; edit those, not this.

/** Changes to the caller's account. */
export interface AccountChange {
  /** Name shown to other users; empty for the name to sign in with. */
  display_name: string;
}

/** An account as its owner and admins see it. */
export interface AccountView {
  id: string;
  name: string;
  display_name: string;
  role: UserRole;
  created_at: string;
  disabled_at: string | null;
  last_seen_at: string | null;
}

export interface Actions {
  actions: AuditAction[];
}

/** The version that an upload became; its ``state`` says how far it has been read. */
export interface Added {
  id: string;
  version: number;
  state: DocumentState;
}

/** Options of another reply. */
export interface AnotherReply {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Ids of the collections of documents that this conversation's replies rest on from now on; empty: none. Default: those of its settings. */
  collections?: string[] | null;
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
}

export interface ArticleList {
  articles: ArticleView[];
}

/** Where to propose an article. */
export interface ArticleRequest {
  /** Id of a collection that the caller may edit; default: Knowledge. */
  collection?: string | null;
}

/** The text of an article. */
export interface ArticleText {
  title: string;
  /** Markdown without the title. */
  body: string;
}

/** An article that waits to be published. No search finds it. */
export interface ArticleView {
  id: string;
  collection: string;
  title: string;
  body: string;
  author: string;
  created_at: string;
  updated_at: string;
}

/** An audit action type. The values are stored in databases: add new ones, never change existing ones. */
export type AuditAction = "signed_in" | "sign_in_failed" | "signed_out" | "signed_out_everywhere" | "session_revoked" | "password_changed" | "password_reset" | "reset_link_made" | "account_created" | "account_disabled" | "account_enabled" | "role_changed" | "invited" | "invitation_revoked" | "history_taken_over" | "api_key_created" | "api_key_revoked" | "conversation_deleted" | "messages_deleted" | "exported" | "imported" | "model_changed" | "adapter_loaded" | "adapter_unloaded" | "person_deleted" | "prompt_changed" | "prompt_deleted" | "canned_reply_changed" | "canned_reply_deleted" | "reply_reviewed" | "document_added" | "document_removed" | "collection_created" | "collection_changed" | "collection_deleted" | "collection_member_set" | "collection_member_removed" | "article_proposed" | "article_published" | "article_discarded" | "gap_marked";

/** One audit entry. */
export interface AuditEntry {
  id: string;
  at: string;
  actor: string | null;
  action: string;
  target: string | null;
  details: Record<string, unknown>;
}

/** A canned reply to choose from. */
export interface CannedReply {
  name: string;
  title: string;
  description: string;
  variables: Variable[];
  body: string;
}

/** A message that a summary rests on, or that an outline shows. */
export interface CaseReference {
  number: number;
  message_id: string;
  role: Role;
  excerpt: string;
}

/** A summary; without text, an outline. */
export interface CaseSummary {
  text: string;
  messages: CaseReference[];
  total: number;
  left_out: number;
  has_earlier: boolean;
  notice: string | null;
}

/** Saved with the conversation. ``None`` means the model's own default. */
export interface ChatSettings {
  preset?: string | null;
  /** Lower is more predictable; 0 always picks the likeliest word. */
  temperature?: number | null;
  /** Keeps the likeliest words until they add up to this share. */
  top_p?: number | null;
  /** Keeps only this many likeliest words; 0 keeps all. */
  top_k?: number | null;
  /** Drops words less likely than this share of the likeliest one. */
  min_p?: number | null;
  /** Keeps the words about as likely as expected, up to this share; 1 keeps all. */
  typical_p?: number | null;
  /** Keeps words within this many standard deviations of the best score; 0 keeps all. */
  top_n_sigma?: number | null;
  /** Above 1, words already used become less likely. */
  repetition_penalty?: number | null;
  /** Above 0, words in the reply become less likely; below 0, likelier. */
  presence_penalty?: number | null;
  /** Above 0, each use of a word in the reply makes it less likely; below 0, likelier. */
  frequency_penalty?: number | null;
  /** Maximum tokens in a reply. Leave empty to let the model decide. */
  max_tokens?: number | null;
  /** The reply stops before any of these. One per line. */
  stop?: string[];
  /** The same seed repeats a reply (exactly, in float32). Leave empty for a random seed. */
  seed?: number | null;
  system_prompt_name?: string | null;
  /** Values for the named prompt's variables; the others have their defaults. */
  system_prompt_variables?: Record<string, string>;
  system_prompt?: string;
  /** Whether the model thinks before it answers, if it can do both. Null: the model's default. */
  thinking?: boolean | null;
  /** Tokens of thinking after which the answer begins. */
  max_thinking_tokens?: number | null;
  /** False: the model may not call the tools that this chat is offered. */
  use_tools?: boolean | null;
  /** Name of the LoRA adapter that replies. Null: the model without one. */
  adapter?: string | null;
  /** Ids of the collections of documents that replies rest on. Empty: none. */
  collections?: string[];
  /** JSON schema that each reply is held to. Null: free text. */
  json_schema?: string | null;
}

export interface ChatTitle {
  id: string;
  title: string;
}

export interface ChunkList {
  chunks: ChunkView[];
  next_cursor: string | null;
}

/** A chunk of a document, with its words. */
export interface ChunkView {
  ordinal: number;
  heading: string;
  text: string;
  start: number;
  end: number;
  tokens: number;
}

/** A passage that a reply cites by its number. It keeps the passage's words: the document may be deleted. */
export interface Citation {
  number: number;
  document_id: string;
  version: number;
  start: number;
  end: number;
  title: string;
  heading: string;
  text: string;
}

/** What to change; omitted fields stay. */
export interface CollectionChange {
  name?: string | null;
  description?: string | null;
  everyone?: boolean | null;
}

export interface CollectionList {
  collections: CollectionView[];
}

export interface CollectionMemberView {
  user_id: string;
  name: string;
  may_edit: boolean;
}

/** What a collection's deletion touches. Only the viewing user's own chats are named. */
export interface CollectionUse {
  can_delete: boolean;
  documents: number;
  chats: number;
  own_chats: ChatTitle[];
}

/** A collection, as one user sees it. */
export interface CollectionView {
  id: string;
  name: string;
  description: string;
  everyone: boolean;
  may_edit: boolean;
  documents: number;
}

/** Options of a continued reply. */
export interface Continuation {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
}

/** Changes to a conversation; omitted fields stay. */
export interface ConversationChange {
  /** The new title. */
  title?: string | null;
  /** The new settings; replaces all of them. */
  settings?: ChatSettings | null;
  /** Listed first. */
  pinned?: boolean | null;
  /** Hidden from the list, but found by search. */
  archived?: boolean | null;
  /** A reply has finished that the user has not seen. */
  unread?: boolean | null;
  /** The new tags; replaces all of them. */
  tags?: string[] | null;
}

/** The conversation to show. */
export interface ConversationRef {
  conversation_id: string;
}

/** A row of the sidebar. Never carries message bodies; the fields below ``tags`` are set for search hits only. */
export interface ConversationSummary {
  id: string;
  title: string;
  created_at: string;
  updated_at: string;
  streaming: boolean;
  pinned: boolean;
  archived: boolean;
  unread: boolean;
  tags: string[];
  message_id: string | null;
  snippet: SnippetPart[];
}

/** An open conversation: the last messages of the path from the root to its tip. */
export interface ConversationView {
  id: string;
  title: string;
  settings: ChatSettings;
  pinned: boolean;
  archived: boolean;
  tags: string[];
  messages: MessageView[];
  has_earlier: boolean;
  active_turn_id: string | null;
  temporary: boolean;
}

/** A conversation that was created. */
export interface CreatedConversation {
  conversation_id: string;
  title: string;
}

/** A new API key. ``key`` is only shown in this response. */
export interface CreatedKey {
  id: string;
  name: string;
  key: string;
  scopes: Scope[];
  expires_at: string | null;
}

/** A new link. It is only shown in this response, and works once. */
export interface CreatedLink {
  link: string;
  expires_at: string | null;
}

export interface DeletedResponses {
  deleted: number;
}

/** A deletion, which can be undone by its id. */
export interface Deletion {
  deletion_id: string;
  conversation_id: string;
  messages: number;
}

/** What a deletion would delete, in numbers. ``audit_events`` stay and keep only the deleted user's id. */
export interface DeletionPreview {
  user_id: string;
  name: string;
  conversations: number;
  messages: number;
  replies: number;
  feedback: number;
  responses: number;
  api_keys: number;
  sessions: number;
  audit_events: number;
}

export interface DocumentList {
  documents: DocumentView[];
  next_cursor: string | null;
}

/** How far a document has been read. */
export type DocumentState = "waiting" | "reading" | "ready" | "failed";

/** A document. ``version`` is the one that is searched; None until one has been read. */
export interface DocumentView {
  id: string;
  collection: string;
  name: string;
  title: string;
  kind: string;
  version: number | null;
  newest: number;
  state: DocumentState;
  error: string | null;
  progress: number;
  chunks: number;
  bytes: number;
  created_at: string;
  updated_at: string;
}

/** The state of a download. The last three are final. */
export type DownloadState = "downloading" | "loading" | "done" | "failed" | "cancelled";

/** The last download. */
export interface DownloadView {
  model: string;
  title: string;
  /** Whether the model is loaded afterwards. */
  load: boolean;
  state: DownloadState;
  stage: string;
  /** Progress of the stage, 0 to 1. */
  progress: number;
  /** Why it failed, as a sentence. */
  error: string | null;
}

/** A draft. It is stored, beside the conversation's messages, unless the model had nothing to write it from. */
export interface Draft {
  id: string | null;
  text: string;
  citations: Citation[];
  notice: string | null;
}

/** How a draft is written again. */
export type DraftChange = "shorter" | "friendlier";

/** What a user made of a draft. */
export interface DraftInUse {
  /** The draft as the user changed it, with its citations. */
  text: string;
  /** What the user did with it. */
  used_as: DraftUse;
}

/** What a draft is written from. */
export interface DraftToWrite {
  /** The customer's message. */
  text: string;
  /** The agent's notes on the case. */
  notes?: string;
  /** Ids of the collections of documents that this conversation's replies rest on from now on; empty: none. Default: those of its settings. */
  collections?: string[] | null;
  /** The draft as it is now, if it is to be changed. */
  draft?: string;
  /** How to change the draft; default: write a new one. */
  change?: DraftChange | null;
  /** Send the draft as server-sent events while it is written: `draft` with its id and what it may cite, `text`, and at the end `end` with the whole draft, or `error`. Disconnecting stops it. */
  stream?: boolean;
}

/** What a user did with a draft. */
export type DraftUse = "copied" | "inserted";

/** The edited message. */
export interface EditedMessage {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Ids of the collections of documents that this conversation's replies rest on from now on; empty: none. Default: those of its settings. */
  collections?: string[] | null;
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
  /** The new text. */
  text: string;
}

/** The number of sessions that were ended. */
export interface EndedSessions {
  sessions: number;
}

/** State of the engine. */
export type EngineState = "stopped" | "starting" | "ready" | "draining" | "asleep" | "swapping" | "restarting" | "failed";

/** A snapshot of the engine's counters, which grow from the start, and gauges, which are current. */
export interface EngineStats {
  num_requests_running: number;
  num_requests_waiting: number;
  kv_cache_usage: number;
  num_kv_blocks: number;
  kv_block_size: number;
  prompt_tokens: number;
  cached_prompt_tokens: number;
  generation_tokens: number;
  num_preemptions: number;
  num_steps: number;
  requests_finished: Record<string, number>;
  state: EngineState;
  num_restarts: number;
  utilisation: Utilisation;
  draft_tokens: number;
  accepted_draft_tokens: number;
}

/** The engine's current state. */
export interface EngineView {
  state: EngineState;
  /** Why it accepts no messages, as a sentence. */
  reason: string | null;
  /** While a model is loading: the current stage. */
  stage: string | null;
  /** Progress of the stage, 0 to 1. */
  progress: number | null;
  /** The model's folder or hub id, or the servers that run it. */
  source: string;
  /** The model runs on another server, and cannot be put to sleep or changed here. */
  remote: boolean;
  /** The loaded model, or the last one while the engine sleeps. */
  model: ModelInfo;
  /** Counters since the start, and current resource use. */
  stats: EngineStats;
  /** The last download of a model, which may be in progress. */
  download: DownloadView | null;
}

/** A reply with the messages before it, its siblings, and the messages after it. */
export interface Exchange {
  item: ReviewItem;
  before: ExchangeMessage[];
  reply: ExchangeMessage;
  others: ExchangeMessage[];
  after: ExchangeMessage[];
  has_earlier: boolean;
  drafts: UsedDraft[];
}

/** A message shown with a reply under review. */
export interface ExchangeMessage {
  id: string;
  role: Role;
  content: string;
  status: MessageStatus;
  created_at: string;
  reasoning: string;
}

/** Feedback as it is shown. */
export interface FeedbackView {
  rating: Rating;
  reasons: Reason[];
  comment: string;
  updated_at: string;
}

/** Why a reply needs a review: it was rated down, or left its question unanswered. */
export type Flag = "low_rated" | "failed" | "interrupted" | "empty" | "asked_again";

/** A model on this machine. */
export interface FoundModelView {
  /** What to give to `POST /api/engine/swap`. */
  id: string;
  name: string;
  /** Where it was found. */
  source: Source;
  /** Size on disk. */
  size_bytes: number;
  /** Number format of the weights, such as BF16 or GGUF Q4_K_M. */
  format: string | null;
  /** The model's own, in tokens. */
  context_length: number | null;
  /** Whether the weights fit into memory; null if that is not known. */
  fits: boolean | null;
  /** Upper bound for one chat: memory bandwidth divided by the weights that one token reads. */
  tokens_per_second: number | null;
  /** Why it cannot be loaded, as a sentence. */
  problem: string | null;
  loaded: boolean;
}

/** Questions that ask for the same, latest first. */
export interface GapGroup {
  question: string;
  count: number;
  last_at: string;
  collections: string[];
  message_ids: string[];
  questions: GapQuestion[];
}

export interface GapList {
  groups: GapGroup[];
  has_more: boolean;
}

/** Questions to take off the list, or to put back. */
export interface GapMark {
  /** The replies' ids. */
  message_ids: string[];
  /** Off the list; the group returns with the next question like them. */
  done: boolean;
}

/** A question that was left unanswered. */
export interface GapQuestion {
  message_id: string;
  conversation_id: string;
  question: string;
  user: string;
  at: string;
  reasons: GapReason[];
  collections: string[];
  own: boolean;
  in_review: boolean;
}

/** Why a question counts as unanswered. */
export type GapReason = "nothing_found" | "not_cited" | "disliked";

/** The user's decision about the calls of tools that wait for it: each of them is allowed or denied. */
export interface GivenDecision {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Ids of the calls that may run. */
  allow?: string[];
  /** Ids of more calls that may run, and whose tools are not asked about again in this conversation. */
  allow_for_chat?: string[];
  /** Ids of the calls that may not. */
  deny?: string[];
}

/** The user's rating of a reply. */
export interface GivenFeedback {
  /** Thumb up or down. */
  rating: Rating;
  /** Reasons that go with the rating. */
  reasons?: Reason[];
  /** Free text. */
  comment?: string;
}

/** A user's feedback on the reply. */
export interface GivenOpinion {
  by: string;
  rating: Rating;
  reasons: Reason[];
  comment: string;
  at: string;
}

/** The result of an import. */
export interface ImportCounts {
  imported: number;
  already_there: number;
}

/** An invitation to create. */
export interface Invite {
  /** The role of the new account. */
  role?: UserRole;
  /** Who the invitation is for. */
  note?: string | null;
  /** Days until the link expires. */
  days?: number;
}

/** An API key, without its secret. */
export interface KeyView {
  id: string;
  name: string;
  beginning: string;
  scopes: Scope[];
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
}

/** What a link's visitor sees before using it. */
export interface Link {
  purpose: Purpose;
  role: UserRole;
  name: string | null;
  local_conversations: number;
}

/** The token of a link. */
export interface LinkToken {
  /** The last part of the link. */
  token: string;
}

/** The account or password that a link creates. */
export interface LinkUse {
  /** The last part of the link. */
  token: string;
  /** The password as typed. */
  password: string;
  /** The name to sign in with; not for links that reset a password. */
  name?: string | null;
  /** Name shown to other users; default: the name. */
  display_name?: string | null;
  /** The first admin takes over the local user's conversations. */
  with_history?: boolean;
}

/** A link that can still be used. */
export interface LinkView {
  id: string;
  purpose: Purpose;
  role: UserRole;
  note: string | null;
  created_at: string;
  expires_at: string;
}

export interface MarkedQuestion {
  id: string;
  collection: string;
  question: string;
  answer: string;
  document: string;
  created_at: string;
}

/** The caller. */
export interface Me {
  accounts: boolean;
  id: string;
  name: string | null;
  display_name: string | null;
  role: UserRole;
}

export interface MemberList {
  members: CollectionMemberView[];
}

export interface Membership {
  /** May add and remove documents; viewers never may. */
  may_edit?: boolean;
}

/** The status of a message. Only ``STREAMING`` may still change. */
export type MessageStatus = "streaming" | "complete" | "stopped" | "interrupted" | "error";

export interface MessageView {
  id: string;
  conversation_id: string;
  parent_id: string | null;
  role: Role;
  status: MessageStatus;
  content: string;
  created_at: string;
  turn_id: string | null;
  stats: ReplyStats | null;
  error: string | null;
  omitted_messages: number;
  context_length: number | null;
  model: string | null;
  has_system_prompt: boolean;
  siblings: string[];
  feedback: FeedbackView | null;
  reasoning: string;
  reasoning_seconds: number | null;
  tool_uses: ToolUse[];
  citations: Citation[];
}

/** The loaded model. ``name`` is what ``/v1/models`` lists. */
export interface ModelInfo {
  name: string;
  max_model_len: number;
  vocab_size: number;
  dtype: string;
  device: string;
  attention: string;
  num_parameters: number;
  has_chat_template: boolean;
  has_unused_adapter: boolean;
  can_continue: boolean;
  quantization_reason: string | null;
  can_think: boolean;
  can_call_tools: boolean;
  served_names: string[];
  adapters: string[];
}

/** What can be loaded. */
export interface ModelsView {
  found: FoundModelView[];
  recommended: RecommendedModelView[];
  /** Folders that could not be searched, as sentences. */
  notes: string[];
  /** Whether `POST /api/engine/swap` takes any folder; not with accounts. */
  can_load_paths: boolean;
}

/** The adapter to load. */
export interface NewAdapter {
  /** The name by which requests to /v1 choose it. */
  name: string;
  /** A folder in PEFT's format, in the models folder (ENGINE_MODELS_DIR). Without accounts also any other. */
  folder: string;
}

/** A collection to create. */
export interface NewCollection {
  name: string;
  description?: string;
  /** Every user may use it; otherwise admins and members only. */
  everyone?: boolean;
}

/** A conversation that begins without a message, such as with a draft of a reply. */
export interface NewConversation {
  /** What it is about: its title is made from this. */
  text?: string;
  /** Its settings; default: the server's. */
  settings?: ChatSettings | null;
  /** Keep it in memory only, until the server ends at the latest. */
  temporary?: boolean;
}

/** An API key to create. */
export interface NewKey {
  /** Label of the key, such as the program's name. */
  name: string;
  /** What the key allows. */
  scopes?: Scope[];
  /** Days until the key expires; null for never. */
  days?: number | null;
}

/** The model to load instead. */
export interface NewModel {
  /** Time for replies in flight to finish before they end. */
  timeout?: number;
  /** The id of a found model (`GET /api/models`), or a hub id such as Qwen/Qwen3-0.6B. Without accounts also any folder or GGUF file. */
  model: string;
  /** Branch, tag or commit of a hub model. */
  revision?: string | null;
  /** Context window in tokens; default: the model's own. */
  max_model_len?: number | null;
}

/** The current and the new password. */
export interface NewPassword {
  /** The password as typed. */
  present: string;
  /** The password as typed. */
  new: string;
}

/** A new version of a template. */
export interface NewVersion {
  /** The version that was edited; 0 for the file, or for a new template. */
  after: number;
  template: Template;
}

export interface AuditEntryPage {
  items: AuditEntry[];
  next_cursor: string | null;
}

export interface ConversationSummaryPage {
  items: ConversationSummary[];
  next_cursor: string | null;
}

export interface ReviewItemPage {
  items: ReviewItem[];
  next_cursor: string | null;
}

export interface UsedDraftPage {
  items: UsedDraft[];
  next_cursor: string | null;
}

/** A part of a document's version that a search has found. */
export interface Passage {
  document_id: string;
  version: number;
  title: string;
  heading: string;
  text: string;
  start: number;
  end: number;
  score: number;
}

export interface Passages {
  passages: Passage[];
}

/** All accounts, and the open invitations. */
export interface PeopleView {
  people: AccountView[];
  invitations: LinkView[];
  local_conversations: number;
}

/** Changes to a user's account; omitted fields stay. */
export interface PersonChange {
  /** The new role. */
  role?: UserRole | null;
  /** True disables the account at once; false enables it again. */
  disabled?: boolean | null;
}

/** An unsaved template, and values for its variables. */
export interface PreviewTemplate {
  template: Template;
  /** By variable; omitted ones get their defaults. */
  values?: Record<string, string>;
}

/** A new proposal. */
export interface ProposedArticle {
  article: ArticleView;
  notice: string | null;
}

/** The purpose of a link. */
export type Purpose = "invitation" | "reset" | "setup";

export interface QuestionList {
  questions: MarkedQuestion[];
}

/** A question and the passage that answers it. */
export interface QuestionMark {
  question: string;
  document_id: string;
  version: number;
  start: number;
  end: number;
}

export type Rating = "up" | "down";

/** Reasons for a rating. The first three go with a thumb up, the others with a thumb down. */
export type Reason = "correct" | "helpful" | "clear" | "wrong" | "off_topic" | "incomplete" | "unclear" | "too_long" | "tone";

/** A model on the recommended list. */
export interface RecommendedModelView {
  /** What to give to `deskmate model get`, and to the download route. */
  name: string;
  title: string;
  /** One or two sentences. */
  description: string;
  /** Size of the download in millions of bytes. */
  size_mb: number;
  /** Name of the licence, or of the publisher's own terms. */
  licence: string;
  /** open: an open-source licence. own: the publisher's terms, which restrict the use. */
  terms: "open" | "own";
  /** Its id on the Hugging Face Hub. */
  hub: string;
  /** The found model that it is, once it is downloaded. */
  id: string | null;
}

/** A template to remove. */
export interface RemoveTemplate {
  /** The current version, as the client knows it. */
  after: number;
}

export interface RenderedTemplate {
  text: string;
}

export interface RenderedText {
  text: string;
}

/** Statistics shown under a reply. */
export interface ReplyStats {
  prompt_tokens: number;
  cached_prompt_tokens: number | null;
  completion_tokens: number;
  ttft_ms: number;
  itl_ms: number;
  tokens_per_second: number;
  finish_reason: string;
}

/** A version to restore. */
export interface RestoreTemplate {
  /** The current version, as the client knows it. */
  after: number;
  /** The version to restore. */
  version: number;
}

/** A reply in the list of replies to review. Its texts are excerpts. */
export interface ReviewItem {
  message_id: string;
  conversation_title: string;
  user: string;
  model: string | null;
  created_at: string;
  status: MessageStatus;
  error: string | null;
  flags: Flag[];
  question: string;
  reply: string;
  opinions: GivenOpinion[];
  reviewed_by: string | null;
  reviewed_at: string | null;
}

/** Whether a reply has been reviewed. */
export interface ReviewMark {
  /** Reviewed; new feedback reopens it. */
  reviewed: boolean;
}

export type Role = "user" | "assistant";

/** Endpoints that an API key gives access to. */
export type Scope = "chat" | "models";

/** A browser with a signed-in user. */
export interface SessionView {
  id: string;
  created_at: string;
  last_seen_at: string;
  user_agent: string;
  address: string;
  current: boolean;
}

/** Credentials. */
export interface SignIn {
  /** The name to sign in with; case does not matter. */
  name: string;
  /** The password as typed. */
  password: string;
}

/** A piece of a text; ``hit`` marks a match. */
export interface SnippetPart {
  text: string;
  hit: boolean;
}

/** Where a model was found. */
export type Source = "bundled" | "models-dir" | "hub-cache" | "ollama" | "lm-studio";

/** A message to send. The client sends ids and text; the history comes from the database. */
export interface StartTurn {
  /** The user's message. */
  text: string;
  /** The conversation; default: a new one. */
  conversation_id?: string | null;
  /** The message it follows; default: the conversation's last one. */
  parent_id?: string | null;
  /** The last message that the client shows. If the conversation has continued elsewhere, the message is refused, since it would follow messages that the user has not seen. */
  tip_id?: string | null;
  /** Idempotency key, any id the client chooses. A request that is repeated with it, because the response was lost, gets the first response instead of sending the message twice. */
  request_id?: string | null;
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Ids of the collections of documents that this conversation's replies rest on from now on; empty: none. Default: those of its settings. */
  collections?: string[] | null;
  /** Start a conversation that is only kept in memory, and ends with the server at the latest. */
  temporary?: boolean;
  /** Id of an open event stream (`stream_id` of `GET /api/events`): the reply is streamed there from its start, without another request. The response's `in_stream` says whether it is. */
  stream_id?: string | null;
}

/** A turn that was started, and where its reply is streamed. */
export interface StartedTurn {
  turn_id: string;
  conversation_id: string;
  user_message_id: string;
  message_id: string;
  omitted_messages: number;
  context_length: number | null;
  model: string | null;
  has_system_prompt: boolean;
  in_stream: boolean;
}

/** The caller's storage use and limits; null is no limit. */
export interface Storage {
  used_bytes: number;
  max_bytes: number | null;
  conversations: number;
  max_conversations: number | null;
  tags: number;
  max_tags: number | null;
  responses: number;
}

/** A text with variables. */
export interface Template {
  title: string;
  description: string;
  variables?: Variable[];
  /** Sampling settings that suit a prompt; the others are left open. */
  recommended?: ChatSettings;
  /** Tool servers of mcp.json whose tools this prompt's chats are offered. */
  tools?: string[];
  /** How many parameters a model needs for this prompt; default: any model will do. */
  min_parameters?: number | null;
  /** The text, with {{ variables }}. */
  body: string;
}

/** One version of a template. */
export interface TemplateView {
  name: string;
  version: number;
  removed: boolean;
  author: string | null;
  created_at: string | null;
  template: Template;
}

/** A part of a version's text; ``start`` and ``end`` are offsets into the whole. */
export interface TextSpan {
  document_id: string;
  version: number;
  title: string;
  text: string;
  start: number;
  end: number;
  length: number;
}

/** A tool server with its tools, or the reason why it has none now. */
export interface ToolServerView {
  name: string;
  tools: ToolView[];
  problem: string | null;
}

/** A call of a tool in a reply, with the user's decision and its result: the engine's ``ToolCall`` has neither. */
export interface ToolUse {
  id: string;
  name: string;
  arguments: string;
  round: number;
  at: number;
  reasoning_at: number;
  status: ToolUseStatus;
  result: string;
  seconds: number | null;
}

/** The state of a call. */
export type ToolUseStatus = "waiting" | "allowed" | "done" | "failed" | "denied";

/** A tool that chats can be offered. */
export interface ToolView {
  name: string;
  description: string;
  asks: boolean;
}

/** The number of conversations that changed their owner. */
export interface TransferredConversations {
  conversations: number;
}

/** The sources that the reply cites so far, by number. Comes after the text that cites them. */
export interface TurnCitations {
  citations: Citation[];
}

/** The reply is final and saved with ``status``. */
export interface TurnEnd {
  status: MessageStatus;
  stats: ReplyStats | null;
  error: string | null;
  message_id: string;
  offset: number;
  reasoning_offset: number;
  reasoning_seconds: number | null;
}

/** A notice for the user while the reply continues. */
export interface TurnNotice {
  message: string;
}

/** Prompt progress: how much of the prompt the engine has processed, in tokens. */
export interface TurnProgress {
  processed: number;
  total: number;
}

/** What the model has thought since this reader's reasoning offset. */
export interface TurnReasoning {
  text: string;
  offset: number;
  seconds: number | null;
  ended: boolean;
}

/** The ids of a started turn. */
export interface TurnRef {
  turn_id: string;
  conversation_id: string;
  user_message_id: string;
  message_id: string;
  omitted_messages: number;
  context_length: number | null;
  model: string | null;
  has_system_prompt: boolean;
}

/** All text that the reply has gained since this reader's offset. */
export interface TurnText {
  text: string;
  offset: number;
}

/** A call of a tool, new or with another status. Comes after the text that precedes it. */
export interface TurnToolUse {
  use: ToolUse;
}

/** How to unload the current model. */
export interface UnloadOptions {
  /** Time for replies in flight to finish before they end. */
  timeout?: number;
}

/** Usage of a time span. A percentile is None if nothing was measured. */
export interface Usage {
  name: string;
  conversations: number;
  messages: number;
  replies: number;
  failed: number;
  users: number;
  prompt_tokens: number;
  cached_prompt_tokens: number;
  completion_tokens: number;
  ttft_p50_ms: number | null;
  ttft_p95_ms: number | null;
  tokens_per_second_p50: number | null;
  thumbs_up: number;
  thumbs_down: number;
}

/** Usage of a range of days, in total and per day. */
export interface UsageReport {
  zone: string;
  total: Usage;
  days: Usage[];
}

/** A draft that was used, for a review. */
export interface UsedDraft {
  id: string;
  conversation_id: string;
  conversation_title: string;
  user: string;
  model: string;
  message: string;
  change: DraftChange | null;
  created_at: string;
  used_as: DraftUse;
  used_at: string;
  changes: WordChange[];
  citations: Citation[];
  withheld: string | null;
}

/** The role of an account. No role gives access to another user's conversations. */
export type UserRole = "admin" | "agent" | "viewer";

/** Utilisation over the last :data:`WINDOW_SECONDS` seconds, or since the start if that is less. */
export interface Utilisation {
  device_busy: number;
  batch_occupancy: number;
  token_occupancy: number;
  prompt_tokens_per_second: number;
  generation_tokens_per_second: number;
  time_to_first_token_seconds: number | null;
  inter_token_latency_seconds: number | null;
}

/** Values of a template's variables. */
export interface Values {
  /** By variable; omitted ones get their defaults. */
  values?: Record<string, string>;
}

/** A variable of a template. */
export interface Variable {
  /** As used in the text: {{ name }}. */
  name: string;
  /** Asks the user for the value. */
  description: string;
  /** None if a value is required. */
  default?: string | null;
}

export interface VersionRef {
  version: number;
}

/** The current user of the desk. */
export interface Viewer {
  user_id: string;
  name: string | null;
  role: UserRole;
}

/** The model to download. */
export interface WantedModel {
  /** A name on the recommended list, or a hub id such as Qwen/Qwen3-0.6B or org/repo:Q4_K_M. */
  model: string;
  /** Load it as soon as it is here. The old model serves until then. */
  load?: boolean;
}

/** A run of words that both texts have, or only the first (removed), or only the second (added). */
export interface WordChange {
  kind: WordChangeKind;
  text: string;
}

export type WordChangeKind = "same" | "removed" | "added";
