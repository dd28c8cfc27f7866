//! Compilers and interpreters.

use super::{Program, TEXT};

pub(super) const LANGUAGES: &[Program] = &[
    Program::line(
        "gcc",
        "gcc",
        "gcc -O2 -x c -o sums - && ./sums && echo 'int f(void) { return nothing; }' | gcc -c -x c -o none.o - ; echo $?",
    )
    .prepared(
        r#"
awk 'BEGIN {
    print "\043include <stdio.h>"
    for (i = 0; i < 400; i++)
        print "unsigned f" i "(unsigned n) { unsigned s = " i "; for (unsigned k = 0; k < n; k++) s = s * 31 + (k ^ (s >> 3)); return s; }"
    print "int main(void) { unsigned s = 0;"
    for (i = 0; i < 400; i++) print "s ^= f" i "(20000);"
    print "printf(\"%u\\n\", s); }"
}' >sums.c"#,
    )
    .reads_file("sums.c"),
    Program::line("g++", "g++", "g++ -O1 -x c++ -o words - && ./words <\"$INPUT/text\"")
        .prepared(TEXT)
        .reads(
            r#"
#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
int main() {
    std::map<std::string, unsigned> counts;
    std::string word;
    while (std::cin >> word) counts[word]++;
    unsigned most = 0, matching = 0;
    std::regex pattern("[0-9]+[a-f][0-9]");
    for (auto& [text, count] : counts) {
        most = std::max(most, count);
        matching += std::regex_match(text, pattern);
    }
    std::cout << counts.size() << ' ' << most << ' ' << matching << '\n';
}
"#,
        ),
    Program::line("python3", "python3", "exec python3 -").reads(
        r#"
import collections, json, re
rows = [{"id": i, "name": f"n{i * 7919 % 10007}", "tags": [i % 3, i % 5]} for i in range(200000)]
text = json.dumps(rows)
back = json.loads(text)
counts = collections.Counter(row["name"] for row in back)
print(len(text), counts.most_common(3), len(re.findall(r"n1\d*2", text)))
with open("rows.json", "w") as file:
    file.write(text)
"#,
    ),
    Program::line("numpy", "python3-numpy", "exec python3 -")
        .probed("python3 -c 'import numpy'")
        .reads(
            r#"
import numpy
n = 1200
a = (numpy.arange(n * n, dtype=numpy.int64) * 7919 % 101).reshape(n, n)
b = a.astype(numpy.float64)
print(int((b @ b).sum()), int(numpy.sort(a, axis=None)[::100000].sum()))
x = numpy.linalg.solve(b + 2000 * numpy.eye(n), numpy.ones(n))
print(f"{x.sum():.6f}")
"#,
        ),
    Program::line("multiprocessing", "python3", "exec python3 \"$INPUT/squares.py\"")
        .probed("command -v python3")
        .prepared(
            r#"
cat >squares.py <<'end'
import multiprocessing
def squares(start):
    table = {i: i * i for i in range(start, start + 200000)}
    return sum(table.values()) % 1000003
if __name__ == "__main__":
    for method in ["fork", "spawn"]:
        with multiprocessing.get_context(method).Pool(3) as pool:
            print(method, pool.map(squares, range(0, 2400000, 200000)))
end"#,
        ),
    Program::line("perl", "perl", "exec perl - \"$INPUT/text\"")
        .prepared(TEXT)
        .reads(
            r#"
use strict;
my (%count, @long);
while (<>) { for (split) { $count{$_}++; push @long, $_ if /^[a-f]\d{3}$/ } }
my @names = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
print scalar(@names), " ", scalar(@long), " @names[0 .. 4]\n";
"#,
        ),
    Program::line("ruby", "ruby", "exec ruby -").reads(
        r#"
words = (1..400_000).map { |i| "w#{i * 7919 % 50021}" }
counts = words.tally.sort_by { |word, count| [-count, word] }
puts counts.first(3).inspect, words.map(&:size).sum, words.join(",").scan(/w1\d*7/).size
"#,
    ),
    Program::line("php", "php-cli", "exec php").reads(
        r#"<?php
$rows = [];
for ($i = 0; $i < 200000; $i++) { $rows[] = ["id" => $i, "key" => "k" . ($i * 7919 % 10007)]; }
usort($rows, fn($a, $b) => strcmp($a["key"], $b["key"]) ?: $a["id"] <=> $b["id"]);
echo $rows[0]["id"], " ", end($rows)["key"], " ", md5(json_encode($rows)), "\n";
"#,
    ),
    Program::line("lua", "lua5.4", "exec lua -").reads(
        r#"
local names, total = {}, 0
for i = 1, 1500000 do names[i] = string.format("n%d", i * 7919 % 100003) end
table.sort(names)
for i = 1, #names, 1000 do total = total + #names[i] end
print(#names, names[1], names[#names], total)
"#,
    ),
    Program::line("guile", "guile-3.0", "exec guile --no-auto-compile -s /dev/stdin").reads(
        r#"
(define (numbers n) (let loop ((i 0) (made '())) (if (= i n) made (loop (+ i 1) (cons (modulo (* i 7919) 100003) made)))))
(define sorted (sort (numbers 600000) <))
(define table (make-hash-table))
(for-each (lambda (x) (hashv-set! table x (+ 1 (hashv-ref table x 0)))) sorted)
(display (list (length sorted) (list-ref sorted 300000) (hash-count (const #t) table)))
(newline)
"#,
    ),
    Program::line("tclsh", "tcl", "exec tclsh").reads(
        r#"
for {set i 0} {$i < 1000000} {incr i} { dict incr counts [expr {$i * 7919 % 50021}] }
set names [lsort -integer [dict keys $counts]]
puts "[llength $names] [lindex $names 777] [string length [join $names ,]]"
"#,
    ),
    Program::line("node", "nodejs", "exec node -").reads(
        r#"
const rows = Array.from({length: 700000}, (_, i) => ({id: i, name: `n${i * 7919 % 10007}`}));
const groups = new Map();
for (const row of rows) groups.set(row.name, (groups.get(row.name) ?? 0) + 1);
const text = JSON.stringify(rows);
console.log(groups.size, text.length, JSON.parse(text).sort((a, b) => a.name < b.name ? -1 : a.name > b.name ? 1 : a.id - b.id)[5].id);
"#,
    ),
    Program::line("java", "default-jdk-headless", "exec java -Xmx256m -cp \"$INPUT\" Rows")
        .probed("command -v java && command -v javac")
        .prepared(
            r#"
cat >Rows.java <<'end'
import java.util.*;
import java.util.stream.*;
public class Rows {
    record Row(int id, String name) {}
    public static void main(String[] arguments) {
        List<Row> rows = new ArrayList<>();
        for (int i = 0; i < 900_000; i++) rows.add(new Row(i, "n" + (i * 7919L % 10007)));
        Map<String, Long> groups = rows.stream().collect(Collectors.groupingBy(Row::name, TreeMap::new, Collectors.counting()));
        rows.sort(Comparator.comparing(Row::name).thenComparing(Row::id));
        System.out.println(groups.size() + " " + rows.get(12345) + " " + rows.hashCode());
    }
}
end
javac Rows.java"#,
        ),
    Program::line(
        "go",
        "golang-go",
        r#"
export GOCACHE=$TMPDIR/cache GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-trimpath GO111MODULE=off
cp -r "$INPUT/cache" "$TMPDIR/cache"
go build -o rows "$INPUT/rows.go" && ./rows"#,
    )
    .prepared(
        r#"
cat >rows.go <<'end'
package main

import (
	"fmt"
	"sort"
	"sync"
)

func main() {
	parts := make([]map[string]int, 4)
	var all sync.WaitGroup
	for p := range parts {
		all.Add(1)
		go func() {
			defer all.Done()
			parts[p] = map[string]int{}
			for i := p; i < 2000000; i += 4 {
				parts[p][fmt.Sprintf("n%d", i*7919%50021)]++
			}
		}()
	}
	all.Wait()
	counts := map[string]int{}
	for _, part := range parts {
		for name, count := range part {
			counts[name] += count
		}
	}
	names := make([]string, 0, len(counts))
	for name := range counts {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println(len(names), names[0], counts[names[7]])
}
end
GOCACHE=$PWD/cache GOTOOLCHAIN=local GOPROXY=off GOFLAGS=-trimpath GO111MODULE=off go build -o /dev/null rows.go"#,
    ),
    Program::line("swipl", "swi-prolog-core", "exec swipl -q -f /dev/stdin -t halt -g main").reads(
        r#"
rows(N, Rows) :- findall(K-I, (between(1, N, I), K is I * 7919 mod 10007), Rows).
main :- rows(500000, Rows), msort(Rows, Sorted), nth1(777, Sorted, Row), length(Sorted, Length),
    foldl([K-_, S, T]>>(T is S + K), Sorted, 0, Sum), writeln(Length-Row-Sum).
"#,
    ),
    Program::line("ocaml", "ocaml", "exec ocaml /dev/stdin").reads(
        r#"
module Names = Map.Make (String)
let rec fill names i =
  if i = 0 then names
  else
    let name = string_of_int (i * 7919 mod 50021) in
    let count = match Names.find_opt name names with Some n -> n | None -> 0 in
    fill (Names.add name (count + 1) names) (i - 1)
let () =
  let names = fill Names.empty 500000 in
  let name, count = Names.max_binding names in
  Printf.printf "%d %s %d\n" (Names.cardinal names) name count
"#,
    ),
    Program::line("gforth", "gforth", "exec gforth \"$INPUT/sieve.fs\"").prepared(
        r#"
cat >sieve.fs <<'end'
4000000 constant size
create flags size allot
: sieve ( -- n )
  flags size 1 fill
  0 size 2 do
    flags i + c@ if
      1+ i dup * dup size < i 4000 < and if
        begin dup size < while 0 over flags + c! i + repeat
      then drop
    then
  loop ;
: again 0 8 0 do drop sieve loop . cr ;
again bye
end"#,
    ),
    Program::line("gawk", "gawk", "exec gawk -f - \"$INPUT/text\"").prepared(TEXT).reads(
        r#"{ for (i = 1; i <= NF; i++) { count[$i]++; if ($i ~ /^[a-f][0-9]+$/) found++ } }
END { for (word in count) { total += count[word] * length(word); if (count[word] > most) most = count[word] } print length(count), total, most, found }
"#,
    ),
    Program::line("mawk", "mawk", "exec mawk -f - \"$INPUT/text\"").prepared(TEXT).reads(
        r#"{ for (i = 1; i <= NF; i++) { count[$i]++; if ($i ~ /^[a-f][0-9]+$/) found++ } }
END { for (word in count) { total += count[word] * length(word); if (count[word] > most) most = count[word] } print total, most, found }
"#,
    ),
    Program::line("jq", "jq", "exec jq -c -s 'map({id: ., name: tostring}) | group_by(.id % 97) | map([length, .[0].name]) | .[3:6]'")
        .prepared("seq 1 250000 >numbers")
        .reads_file("numbers"),
    Program::line("bc", "bc", "exec bc -l").reads("scale = 1100\n4 * a(1)\ne(1)\n"),
];
