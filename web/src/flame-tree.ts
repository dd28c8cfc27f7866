/** What a flame graph is made of. */
export interface Chain {
  /** the outermost function first */
  stack: string[];
  value: number;
  /** how far off the value may be; null where nobody knows */
  error: number | null;
  /** it stands for what no list has room for */
  rest?: boolean;
}

export interface Node {
  name: string;
  /** in lower case, for searches */
  low: string;
  value: number;
  /** what of the value is in no box below */
  self: number;
  /** of independent samples squares of errors add up */
  error: number | null;
  rest: boolean;
  start: number;
  children: Node[];
  parent: Node | null;
}

/** Chains that begin alike are one box as long as they are; the widest of what stands side by side comes first, and last what is left. */
export function tree(name: string, chains: Chain[]): Node {
  const make = (name: string, parent: Node | null): Node =>
    ({ name, low: name.toLowerCase(), value: 0, self: 0, error: 0, rest: false, start: 0, children: [], parent });
  const root = make(name, null);
  const index = new Map<Node, Map<string, Node>>();
  const add = (node: Node, chain: Chain) => {
    node.value += chain.value;
    node.error = node.error === null || chain.error === null ? null : Math.hypot(node.error, chain.error);
  };
  for (const chain of chains) {
    let node = root;
    add(root, chain);
    for (const name of chain.stack) {
      let below = index.get(node);
      if (!below) index.set(node, below = new Map());
      let next = below.get(name);
      if (!next) { below.set(name, next = make(name, node)); node.children.push(next); }
      add(next, chain);
      next.rest ||= chain.rest ?? false;
      node = next;
    }
    node.self += chain.value;
  }
  if (!chains.length) root.error = null;
  const place = (node: Node): void => {
    node.children.sort((a, b) => Number(a.rest) - Number(b.rest) || b.value - a.value);
    let at = node.start;
    for (const child of node.children) { child.start = at; at += child.value; place(child); }
  };
  place(root);
  return root;
}

export function has(node: Node, sought: string): boolean {
  return node.parent !== null && node.low.includes(sought);
}

export function siblings(node: Node): Node[] {
  return node.parent ? node.parent.children : [node];
}
