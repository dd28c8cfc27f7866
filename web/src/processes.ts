import type { Report } from "./payload";

/** A process as a person knows it: its program, or what it calls itself, and its id. */
export function processName(report: Report, pid: number): string {
  const command = report.processes.find(p => p.pid === pid)?.command.split("; then ").pop() ?? "";
  const [program, ...rest] = command.split(" ");
  const own = program.startsWith("/") || !program.endsWith(":") ? program.split("/").pop()! : [program, ...rest].join(" ");
  return own ? `${own} (${pid})` : String(pid);
}

/** The processes of some ids in a cell of a table: their name, or how many. */
export function processNames(report: Report, pids: number[]): string {
  return pids.length === 1 ? processName(report, pids[0]) : pids.length ? `${pids.length} processes` : "–";
}
