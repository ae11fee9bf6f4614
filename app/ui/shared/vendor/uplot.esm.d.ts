// Types of what the desk uses of uPlot.

export interface Options {
  width: number;
  height: number;
  cursor: Record<string, unknown>;
  scales: Record<string, { range(plot: uPlot, min: number, max: number): [number, number] }>;
  axes: { values: unknown[][] | ((plot: uPlot, ticks: number[]) => string[]); [option: string]: unknown }[];
  series: { value(plot: uPlot, value: number | null | undefined): string; [option: string]: unknown }[];
}

export default class uPlot {
  static paths: { bars(options: { size: [share: number, maxPixels: number] }): unknown };
  constructor(options: Options, data: (number | null)[][], target: HTMLElement);
  width: number;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}
