// Types of what the page uses of KaTeX. The module is a script that defines a global.

export interface Katex {
  render(
    tex: string,
    element: HTMLElement,
    options: {
      displayMode: boolean;
      throwOnError: boolean;
      trust: boolean;
      strict: "ignore";
      errorColor: string;
      maxSize: number;
      maxExpand: number;
    },
  ): void;
}
