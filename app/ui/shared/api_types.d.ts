// Written by scripts/api_types.py (make docs) from the JSON API's models; edit those, not this.

/** Changes to the caller's account. */
export interface AccountChange {
  /** Name shown to other users; empty for the name to sign in with. */
  display_name: string;
}

/** Tokens of the replies to one user, or of the bot's replies in one inbox. */
export interface AccountUsage {
  name: string;
  kind: string;
  replies: number;
  failed: number;
  prompt_tokens: number;
  cached_prompt_tokens: number;
  completion_tokens: number;
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

export interface Assignment {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  /** Null assigns the case to none. */
  user_id: string | null;
}

export interface AttachmentView {
  id: string;
  name: string;
  type: string;
  size: number;
}

/** An audit action type. The values are stored in databases: add new ones, never change existing ones. */
export type AuditAction = "signed_in" | "sign_in_failed" | "signed_out" | "signed_out_everywhere" | "session_revoked" | "password_changed" | "password_reset" | "reset_link_made" | "account_created" | "account_disabled" | "account_enabled" | "role_changed" | "identity_connected" | "identity_disconnected" | "invited" | "invitation_revoked" | "history_taken_over" | "api_key_created" | "api_key_revoked" | "conversation_deleted" | "messages_deleted" | "exported" | "imported" | "model_changed" | "adapter_loaded" | "adapter_unloaded" | "person_deleted" | "prompt_changed" | "prompt_deleted" | "canned_reply_changed" | "canned_reply_deleted" | "reply_reviewed" | "document_added" | "document_removed" | "collection_created" | "collection_changed" | "collection_deleted" | "collection_member_set" | "collection_member_removed" | "article_proposed" | "article_published" | "article_discarded" | "gap_marked" | "inbox_created" | "inbox_changed" | "inbox_deleted" | "inbox_secret_changed" | "inbox_member_added" | "inbox_member_removed" | "contact_deleted" | "webhook_created" | "webhook_changed" | "webhook_deleted" | "webhook_secret_changed";

/** One audit entry. */
export interface AuditEntry {
  id: string;
  at: string;
  actor: string | null;
  action: string;
  target: string | null;
  details: Record<string, unknown>;
  names: Record<string, string>;
}

/** Authors of messages, and actors of events. */
export type AuthorKind = "contact" | "bot" | "agent" | "system";

/** The scheduled backups: when the last good one was, and what is wrong with them. */
export interface BackupsView {
  scheduled: boolean;
  running: boolean;
  folder: string;
  last_good_at: string | null;
  last_good_file: string | null;
  last_good_bytes: number | null;
  restored: boolean;
  failed_at: string | null;
  error: string | null;
  next_at: string | null;
  problem: string | null;
}

/** Where a reply branches, and with which token it goes on. */
export interface BranchPoint {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Index of the token to replace, as in the reply's lens. */
  index: number;
  /** Id of the token to put in its place. */
  token_id: number;
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
}

/** A canned reply to choose from. */
export interface CannedReply {
  name: string;
  title: string;
  description: string;
  variables: Variable[];
  body: string;
}

export interface CaseAndMessage {
  message: CaseMessageData;
  case: CaseRow;
}

/** What to change; omitted fields stay. */
export interface CaseChange {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  priority?: CasePriority | null;
  tags?: string[] | null;
  subject?: string | null;
}

export interface CaseEventData {
  id: string;
  kind: CaseEventKind;
  reason: HandOffReason | null;
  actor: NamedActor;
  at: string;
  details: Record<string, unknown>;
}

export type CaseEventKind = "created" | "handed_off" | "assigned" | "snoozed" | "woken" | "resolved" | "reopened" | "merged" | "rated" | "replied" | "priority" | "tags" | "mailed" | "mail_failed";

export interface CaseList {
  cases: CaseRow[];
  next: string | null;
  counts: Record<string, number>;
}

export interface CaseMessageData {
  id: string;
  author: NamedActor;
  internal: boolean;
  text: string;
  status: string;
  created_at: string;
  client_id: string | null;
  citations: Citation[];
  sources: Passage[];
  attachments: AttachmentView[];
}

export type CasePriority = "low" | "normal" | "high" | "urgent";

/** A message that a summary rests on, or that an outline shows. */
export interface CaseReference {
  number: number;
  message_id: string;
  role: Role;
  internal: boolean;
  excerpt: string;
}

/** A row of the list of cases. */
export interface CaseRow {
  id: string;
  inbox_id: string;
  contact: ContactData;
  status: CaseStatus;
  priority: CasePriority;
  assignee: NamedUser | null;
  subject: string;
  preview: string;
  tags: string[];
  epoch: number;
  revision: number;
  waiting_since: string | null;
  snoozed_until: string | null;
  first_reply_at: string | null;
  resolved_at: string | null;
  merged_into: string | null;
  created_at: string;
  updated_at: string;
}

export type CaseStatus = "bot" | "open" | "snoozed" | "resolved";

/** A summary; without text, an outline. */
export interface CaseSummary {
  text: string;
  messages: CaseReference[];
  total: number;
  left_out: number;
  has_earlier: boolean;
  notice: string | null;
}

/** How many conversations were changed. */
export interface ChangedConversations {
  changed: number;
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
  /** The reply stops before a match of any of these regular expressions. One per line. */
  stop_regex?: string[];
  /** The same seed repeats a reply (exactly, in float32). Leave empty for a random seed. */
  seed?: number | null;
  /** Words that the reply never contains, in any casing. One per line. */
  forbidden_words?: string[];
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

/** Some of the caller's conversations. */
export interface ChosenConversations {
  /** Their ids. */
  ids: string[];
}

/** Some of the caller's conversations, and the form of their file. */
export interface ChosenExport {
  /** Their ids. */
  ids: string[];
  format?: "json" | "markdown";
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
  withheld: string | null;
  listed: boolean;
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
  inboxes: InboxName[];
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

/** A command without values of its own. */
export interface Command {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
}

/** The replies that were started, in the order of their settings. The first is the one that is shown. */
export interface Comparison {
  turns: TurnRef[];
}

/** Proof that the account's owner connects it. */
export interface ConnectionRequest {
  /** The password as typed. */
  password?: string;
}

/** What a visitor says of themselves. */
export interface ContactChange {
  name?: string;
  email?: string;
}

export interface ContactData {
  id: string;
  name: string | null;
  email: string | null;
  verified: boolean;
  external_id: string | null;
  language: string | null;
  time_zone: string | null;
}

/** All that is stored of a contact. Files are in its cases, by their ids. */
export interface ContactExport {
  contact: ContactData;
  cases: CaseRow[];
  messages: CaseMessageData[];
  events: CaseEventData[];
}

/** What the next prompt would hold, in tokens. */
export interface ContextView {
  model: string;
  context_length: number;
  system_prompt: number;
  history: number;
  history_messages: number;
  omitted_messages: number;
  message: number;
  template: number;
  max_sources: number;
  reply: number;
  problem: string | null;
}

/** How a reply goes on. */
export interface ContinuedReply {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Write the longer reply as another version. The reply stays, and messages may follow it. */
  as_version?: boolean;
  /** Idempotency key of another version, see POST /api/turns. */
  request_id?: string | null;
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
  /** The folder to move it into; null: out of any. */
  folder_id?: string | null;
}

/** A deletion of whole conversations, which can be undone by its id. */
export interface ConversationDeletion {
  deletion_id: string;
  conversation_ids: string[];
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
  folder_id: string | null;
  folder: string | null;
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
  comparison: VersionView[];
  folder_id: string | null;
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
  drafts: number;
  articles: number;
  marked_questions: number;
  api_keys: number;
  sessions: number;
  audit_events: number;
}

/** ``next``: the cursor of the next page; null after the last one. */
export interface DeliveryList {
  deliveries: DeliveryView[];
  next: string | null;
}

export type DeliveryStatus = "pending" | "delivered" | "failed";

/** What a webhook was, or is to be, told. */
export interface DeliveryView {
  id: string;
  event_id: string;
  event: string;
  case_id: string | null;
  status: DeliveryStatus;
  attempts: number;
  next_attempt_at: string | null;
  response_status: number | null;
  error: string | null;
  created_at: string;
  delivered_at: string | null;
}

/** Why a webhook is off. */
export type DisabledReason = "admin" | "gone" | "failing";

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

/** A reply as the user wants it to begin. */
export interface EditedReply {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** The text, from the reply's beginning on. */
  text: string;
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
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

/** The figures of a day, an hour of the day, an agent, an inbox, or all together. Times are in seconds. */
export interface Figures {
  name: string;
  id: string | null;
  cases: number;
  handed_off: number;
  replies: number;
  resolved: number;
  resolved_by_bot: number;
  deflection: number | null;
  first_reply_s_p50: number | null;
  first_reply_s_p90: number | null;
  waiting_s_p50: number | null;
  waiting_s_p90: number | null;
  resolution_s_p50: number | null;
  satisfaction: number | null;
  ratings: number;
}

/** All figures of a range of days. */
export interface FiguresReport {
  total: Figures;
  days: Figures[];
  hours: Figures[];
  agents: Figures[];
  inboxes: Figures[];
  reasons: Record<string, number>;
}

/** A file that was read, to be sent as a part of a message's text. Nothing of it is stored before that. */
export interface FileInMessage {
  name: string;
  size: number;
  tokens: number;
  block: string;
}

/** Why a reply needs a review: it was rated down, or left its question unanswered. */
export type Flag = "low_rated" | "failed" | "interrupted" | "empty" | "asked_again";

/** What a folder is called. */
export interface FolderName {
  /** At most 60 characters; unique. */
  name: string;
}

/** A folder. */
export interface FolderView {
  id: string;
  name: string;
  conversations: number;
}

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

/** Why people answer a case that the bot answered before. */
export type HandOffReason = "asked_for_person" | "missing_knowledge" | "policy" | "failure" | "timeout" | "agent_took_over";

/** The provider's user who is to sign in to an account. */
export interface IdentityLink {
  /** The provider's id of the user: the claim sub of their ID token. */
  subject: string;
}

/** The result of an import. */
export interface ImportCounts {
  imported: number;
  already_there: number;
}

/** What to change; omitted fields stay. */
export interface InboxChange {
  name?: string | null;
  allowed_origins?: string[] | null;
  time_zone?: string | null;
  opening_hours?: OpeningHours[] | null;
  greeting?: string | null;
  collections?: string[] | null;
  bot?: boolean | null;
}

/** An inbox, without its secret. */
export interface InboxData {
  id: string;
  name: string;
  kind: string;
  token: string;
  allowed_origins: string[];
  time_zone: string;
  opening_hours: (Record<string, unknown>)[];
  greeting: string;
  collections: string[];
  bot: boolean;
  members: NamedUser[];
}

export interface InboxList {
  inboxes: InboxData[];
}

export interface InboxName {
  id: string;
  name: string;
}

/** The key that signs the identities of contacts. It is shown once; the one before holds for a day. */
export interface InboxSecret {
  secret: string;
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

/** A token that could have stood in the place of another. */
export interface LensAlternative {
  id: number;
  text: string;
  logprob: number;
  kept_logprob: number | null;
  removed_by: string | null;
}

/** The choice of one token. */
export interface LensChoice {
  token: LensToken;
  alternatives: LensAlternative[];
  row: LensRow;
}

/** All scores of one place, with what the settings do to them before the temperature. */
export interface LensRow {
  data: string;
  vocab_size: number;
  highest: number;
  has_forbidden: boolean;
  counts: ([number, number])[];
  bias: ([number, number])[];
}

/** The sampling parameters of a reply, completed with the model's own. */
export interface LensSettings {
  temperature: number;
  top_k: number;
  top_p: number;
  min_p: number;
  typical_p: number;
  top_n_sigma: number;
  repetition_penalty: number;
  presence_penalty: number;
  frequency_penalty: number;
}

/** A token of a reply. Probabilities are natural logarithms. */
export interface LensToken {
  id: number;
  text: string;
  logprob: number;
  kept_logprob: number | null;
  entropy: number;
  num_kept: number;
}

/** How the tokens of a reply were chosen. */
export interface LensView {
  model: string;
  settings: LensSettings;
  approximate: boolean;
  tokens: LensToken[];
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

/** The provider's user who signs in to an account. */
export interface LinkedIdentity {
  subject: string;
  label: string;
  created_at: string;
}

/** Whether the server mails replies, and how the outbox is. */
export interface MailView {
  sender: string | null;
  server: string | null;
  delay_minutes: number;
  pending: number;
  last_sent_at: string | null;
  error: string | null;
}

/** Changes to many conversations; omitted fields stay. */
export interface ManyChange {
  /** Their ids. */
  ids: string[];
  /** Hidden from the list, but found by search. */
  archived?: boolean | null;
  /** Tags to add to those that each has. */
  add_tags?: string[];
  /** The folder to move them into; null: out of any. */
  folder_id?: string | null;
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

export interface Merge {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  /** Id of the case that it becomes a part of. */
  into: string;
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
  seed: number | null;
  edited: boolean;
  differences: SettingDifference[];
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
  can_inspect: boolean;
  quantization_reason: string | null;
  can_think: boolean;
  can_call_tools: boolean;
  served_names: string[];
  adapters: string[];
  quantization: string;
  cache_bytes_per_token: number;
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

/** Replies to compare. */
export interface MoreReplies {
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** The settings of each reply, two to four. They are not saved on the conversation. Each reply counts towards the limits as one message. */
  variants: ChatSettings[];
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
}

export interface NamedActor {
  kind: AuthorKind;
  id: string | null;
  name: string | null;
}

export interface NamedAgent {
  name: string;
}

export interface NamedUser {
  id: string;
  name: string;
}

/** The adapter to load. */
export interface NewAdapter {
  /** The name by which requests to /v1 choose it. */
  name: string;
  /** A folder in PEFT's format, in the models folder (ENGINE_MODELS_DIR). Without accounts also any other. */
  folder: string;
}

/** A contact's message that another program received. */
export interface NewCase {
  inbox_id: string;
  contact: NewContact;
  text: string;
  /** The program's own id of the message: sending it again stores nothing. */
  client_id: string;
}

/** What new chats begin with. */
export interface NewChats {
  /** Null: the model's defaults. */
  settings: ChatSettings | null;
}

/** A collection to create. */
export interface NewCollection {
  name: string;
  description?: string;
  /** Every user may use it; otherwise admins and members only. */
  everyone?: boolean;
}

/** A contact as a program knows it. What a website has proven of one stays as it is. */
export interface NewContact {
  /** The program's own id of the contact: a contact is known by it. */
  external_id: string;
  name?: string | null;
  email?: string | null;
  language?: string | null;
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

/** An inbox to create. */
export interface NewInbox {
  name: string;
  kind?: "widget" | "api";
  /** Websites that embed the widget. */
  allowed_origins?: string[];
  time_zone?: string;
  /** An empty list is at any time. */
  opening_hours?: OpeningHours[];
  greeting?: string;
  /** Ids of those that the bot searches. */
  collections?: string[];
  /** Whether the bot answers first. */
  bot?: boolean;
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

/** A name, and settings of which the preset takes the sampling parameters. */
export interface NewPreset {
  /** One that is in use is replaced. */
  name: string;
  settings: ChatSettings;
}

/** A visitor's rating of the case. */
export interface NewRating {
  score: number;
  comment?: string;
}

export interface NewReply {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  text: string;
  /** The client's own id: sending it again stores nothing. */
  client_id?: string | null;
  /** `contact`: what the contact wrote elsewhere, such as by e-mail; it needs a `client_id`. */
  author?: "agent" | "contact";
}

/** A browser that opens the widget. */
export interface NewSession {
  /** Of an earlier session; one that is not valid is new. */
  token?: string | null;
  /** A JSON Web Token by which the website says who its customer is. */
  identity?: string | null;
  /** The visitor's language, such as de-AT. */
  language?: string | null;
  /** The visitor's time zone, such as Europe/Vienna. */
  time_zone?: string | null;
}

/** A new version of a template. */
export interface NewVersion {
  /** The version that was edited; 0 for the file, or for a new template. */
  after: number;
  template: Template;
}

/** A webhook to create. */
export interface NewWebhook {
  url: string;
  /** Empty, it is called by its address. */
  name?: string;
  /** Omitted, it is told of the cases of every inbox. */
  inbox_id?: string | null;
  /** What it is told; an empty list is everything. */
  events?: string[];
}

/** A new webhook and the key that signs what it is sent. The key is shown once. */
export interface NewWebhookData {
  webhook: WebhookView;
  secret: string;
}

/** A message that has not been sent. */
export interface NextMessage {
  /** What is typed so far. */
  text?: string;
  /** The conversation; default: a new one. */
  conversation_id?: string | null;
  /** Default: those of the conversation. */
  settings?: ChatSettings | null;
}

/** A message that has not been sent, and which part of its prompt to show. */
export interface NextPrompt {
  /** What is typed so far. */
  text?: string;
  /** The conversation; default: a new one. */
  conversation_id?: string | null;
  /** Default: those of the conversation. */
  settings?: ChatSettings | null;
  /** Tokens of the prompt before the part to show. */
  offset?: number;
}

/** The caller's connection to the sign-in provider. */
export interface OidcConnection {
  provider: string | null;
  connected_as: string | null;
  has_password: boolean;
}

/** Where the browser goes next. */
export interface OidcStart {
  address: string;
}

/** A time of a weekday at which people answer. */
export interface OpeningHours {
  /** 0 is Monday. */
  day: number;
  from: string;
  to: string;
}

/** A preset that a user has saved. A parameter that is missing in ``values`` is the model's own default. */
export interface OwnPreset {
  id: string;
  name: string;
  values: Record<string, number>;
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
  provider: string | null;
}

/** Changes to a user's account; omitted fields stay. */
export interface PersonChange {
  /** The new role. */
  role?: UserRole | null;
  /** True disables the account at once; false enables it again. */
  disabled?: boolean | null;
}

/** An account's identity at the sign-in provider. */
export interface PersonIdentity {
  provider: string;
  identity: LinkedIdentity | null;
}

export interface PresentUser {
  id: string;
  name: string;
  typing: boolean;
}

export interface PresetList {
  presets: OwnPreset[];
  new_chats: ChatSettings | null;
}

/** An unsaved template, and values for its variables. */
export interface PreviewTemplate {
  template: Template;
  /** By variable; omitted ones get their defaults. */
  values?: Record<string, string>;
}

/** A part of a prompt: one special token, or the text of the tokens between two of them. */
export interface PromptPiece {
  text: string;
  num_tokens: number;
  is_special: boolean;
}

/** A part of a prompt as the model reads it. */
export interface PromptView {
  model: string;
  is_exact: boolean;
  num_tokens: number;
  offset: number;
  next_offset: number | null;
  omitted_messages: number;
  pieces: PromptPiece[];
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

export interface RatingView {
  score: number;
  comment: string;
}

/** What a visitor has seen. */
export interface ReadMark {
  /** The last message that was shown. */
  message_id: string;
}

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
  tokenize_ms: number | null;
  queue_ms: number | null;
  decode_ms: number | null;
  delivery_ms: number | null;
  draft_tokens: number | null;
  accepted_draft_tokens: number | null;
}

/** A version to restore. */
export interface RestoreTemplate {
  /** The current version, as the client knows it. */
  after: number;
  /** The version to restore. */
  version: number;
}

/** What a deletion had deleted, or deleted messages of. */
export interface RestoredConversations {
  conversation_id: string;
  conversation_ids: string[];
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
export type Scope = "chat" | "models" | "cases:read" | "cases:write";

/** A browser with a signed-in user. */
export interface SessionView {
  id: string;
  created_at: string;
  last_seen_at: string;
  user_agent: string;
  address: string;
  current: boolean;
}

/** A setting in which a version differs from another. Null: the model's own default, or none. */
export interface SettingDifference {
  name: string;
  value: string | number | boolean | null;
  other: string | number | boolean | null;
}

/** A sign of life of a page that shows the case. */
export interface Sign {
  typing?: boolean;
  /** False once the page leaves the case. */
  here?: boolean;
}

/** Credentials. */
export interface SignIn {
  /** The name to sign in with; case does not matter. */
  name: string;
  /** The password as typed. */
  password: string;
}

/** The ways to sign in beside a password. */
export interface SignInOptions {
  provider: string | null;
}

/** What is left to do after signing out here. */
export interface SignedOut {
  sign_out_at: string;
}

/** A piece of a text; ``hit`` marks a match. */
export interface SnippetPart {
  text: string;
  hit: boolean;
}

export interface Snooze {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  until: string;
}

/** Where a model was found. */
export type Source = "bundled" | "models-dir" | "hub-cache" | "ollama" | "lm-studio";

/** A message to send, and the settings of the replies to compare. */
export interface StartComparison {
  /** The user's message. */
  text: string;
  /** The settings of each reply, two to four. They are not saved on the conversation. Each reply counts towards the limits as one message. */
  variants: ChatSettings[];
  /** The conversation; default: a new one. */
  conversation_id?: string | null;
  /** The last message that the client shows, see POST /api/turns. */
  tip_id?: string | null;
  /** Idempotency key, see POST /api/turns. */
  request_id?: string | null;
  /** Saved on the conversation; default: its current ones. */
  settings?: ChatSettings | null;
  /** Start a conversation that is only kept in memory. */
  temporary?: boolean;
}

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

export interface TagList {
  tags: Record<string, number>;
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

/** Usage of a range of days: in total, per day, and of the accounts with the most tokens. */
export interface UsageReport {
  zone: string;
  total: Usage;
  days: Usage[];
  accounts: AccountUsage[];
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

/** A version of a reply, with the settings that it was written with. */
export interface VersionView {
  message: MessageView;
  settings: ChatSettings;
}

/** Versions of a reply. */
export interface Versions {
  versions: VersionView[];
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

/** What to change; omitted fields stay. */
export interface WebhookChange {
  name?: string | null;
  url?: string | null;
  /** Null: it is told of the cases of every inbox. */
  inbox_id?: string | null;
  events?: string[] | null;
  enabled?: boolean | null;
}

/** ``events``: all that a webhook can be told. */
export interface WebhookList {
  webhooks: WebhookView[];
  events: string[];
}

export interface WebhookSecret {
  secret: string;
}

/** A webhook, without its secret. */
export interface WebhookView {
  id: string;
  name: string;
  url: string;
  inbox_id: string | null;
  events: string[];
  enabled: boolean;
  failing_since: string | null;
  failure: string | null;
  disabled_at: string | null;
  disabled_reason: DisabledReason | null;
  created_at: string;
  num_pending: number;
  num_failed: number;
}

/** A case with what its page shows. */
export interface WholeCase {
  case: CaseRow;
  messages: CaseMessageData[];
  has_earlier: boolean;
  events: CaseEventData[];
  other_cases: CaseRow[];
  present: PresentUser[];
  rating: RatingView | null;
}

export interface WidgetAuthor {
  kind: AuthorKind;
  name: string | null;
}

/** The state of the visitor's case. */
export interface WidgetCase {
  status: CaseStatus;
  agent: NamedAgent | null;
  open: boolean;
  opens_at: string | null;
  rating: boolean;
}

export interface WidgetCaseAndMessage {
  message: WidgetMessage;
  case: WidgetCase;
}

export interface WidgetCaseData {
  case: WidgetCase;
}

/** A passage that a reply cites. */
export interface WidgetCitation {
  number: number;
  title: string;
  heading: string;
  text: string;
}

export interface WidgetContact {
  name: string | null;
  email: string | null;
  verified: boolean;
}

export interface WidgetInbox {
  name: string;
  greeting: string;
  bot: boolean;
  open: boolean;
  opens_at: string | null;
}

export interface WidgetMessage {
  id: string;
  author: WidgetAuthor;
  text: string;
  status: string;
  created_at: string;
  client_id: string | null;
  citations: WidgetCitation[];
  attachments: AttachmentView[];
}

/** All that the widget shows when it opens. */
export interface WidgetSessionData {
  token: string;
  expires_at: string;
  inbox: WidgetInbox;
  case: WidgetCase | null;
  messages: WidgetMessage[];
  contact: WidgetContact;
  last_event_id: string | null;
  identity_error: string | null;
  attachments: boolean;
  max_attachment_bytes: number;
}

/** A run of words that both texts have, or only the first (removed), or only the second (added). */
export interface WordChange {
  kind: WordChangeKind;
  text: string;
}

export type WordChangeKind = "same" | "removed" | "added";

export interface _api__cases__cases__NewMessageapp {
  /** As the caller read it: refused with 409 if it has grown since. */
  epoch?: number | null;
  text: string;
  /** The client's own id: sending it again stores nothing. */
  client_id?: string | null;
}

/** A message of a visitor. */
export interface _api__widget__routes__NewMessageapp {
  /** The words; a message with files needs none. */
  text?: string;
  /** The client's own id: sent again, it stores nothing. */
  client_id: string;
  /** Ids of files that were sent before. */
  attachments?: string[];
}
