// Types of what the page uses of highlight.js.

declare const hljs: {
  getLanguage(name: string): unknown;
  registerLanguage(name: string, grammar: unknown): void;
  highlight(code: string, options: { language: string; ignoreIllegals: boolean }): { value: string };
};
export default hljs;
