// Types of what the desk uses of uPlot.

export interface Options {
  width: number;
  height: number;
  [option: string]: unknown;
}

export default class uPlot {
  static paths: { bars(options: { size: [share: number, maxPixels: number] }): unknown };
  constructor(options: Options, data: (number | null)[][], target: HTMLElement);
  width: number;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
