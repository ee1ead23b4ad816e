"""Harmless shell scripts by chance, and what bash makes of them: the oracle of the reader of scripts."""

import os
import random
import subprocess
from collections.abc import Callable

TEXTS = ("A", "B", "C", "D")
NUMBERS = ("P", "Q", "R")
LISTS = ("L", "M")
UNSET = "(unset)"
_PLAIN = ("x", "8", "fp8", "tp=4", "a/b.c", "v1.2-rc", "Qwen3", "--tp", "x#y", "0", "")
_QUOTED = ("a b", " x ", "it", "#1", "$TP", "a;b", "*", "&&", "TP=8")
_SUBSTITUTED = ("echo x)", "case y in y) echo 1;; esac)", "cat <<E1\na)b\nE1\n)", "echo '(')", "echo $((1)) # )\n)")
_EPILOGUE = "".join(f'printf "%s\\0" "${{{name}-{UNSET}}}"\n' for name in (*TEXTS, *NUMBERS))
_EPILOGUE += "".join(f'printf "%s\\0" "${{#{name}[@]}}" "${{{name}[@]}}"\n' for name in LISTS)
_PROLOGUE = 'exec 9>&1; launch() { printf "%s\\0" launch $# "$@" >&9; }\n'


class Scripts:
    """A source of scripts; ``unread`` of a hundred conditions and values are such as only an execution knows."""

    def __init__(self, seed: int, unread: int = 2):
        self.random, self.unread, self.depth, self.functions = random.Random(seed), unread, 0, 0

    def one(self, *choices: str) -> str:
        return self.random.choice(choices)

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def script(self) -> str:
        start = [f"{name}={self.one(*_PLAIN)}" for name in TEXTS if self.chance(97)]
        start += ["set -- one 'two words'"] if self.chance(90) else []
        start += [f"{name}={self.random.randrange(9)}" for name in NUMBERS if self.chance(97)]
        start += ["declare -A T", "name=C", "L=() M=()"]
        start += [f"{name}=({self.words()})" for name in LISTS if self.chance(97)]
        lines = [self.statement() for _ in range(self.random.randrange(4, 12))]
        return "\n".join([*start, *lines, f"launch {self.words()}"]) + "\n"

    # --- words

    def reference(self) -> str:
        name = self.one(*TEXTS, *NUMBERS)
        other = self.one(*TEXTS)
        return self.one(
            f"${name}",
            f"${{{name}}}",
            f"${{{name}:-{self.one('w', '$' + other, '${' + other + ':-z}')}}}",
            f"${{{name}-w}}",
            f"${{{name}:+{self.one('w', '$' + other)}}}",
            f"${{{name}:=new}}",
            f"${{#{name}}}",
            f"${{{name}%{self.one('.*', '?', 'x', '/*', '[0-9]')}}}",
            f"${{{name}%%{self.one('.*', '-*', '*')}}}",
            f"${{{name}#{self.one('*/', 'a', '?', '--')}}}",
            f"${{{name}##{self.one('*/', '*[a-c]')}}}",
            f"${{{name}/{self.one('x/y', 'a', '-/_', '?/q', '[0-9]/n')}}}",
            f"${{{name}//{self.one('-/_', '/+', '[a-z]/l', 'x/$A')}}}",
            f"${{{name}^^}}",
            f"${{{name},,}}",
            f"${{{name}^}}",
            f"${{{name}:1}}",
            f"${{{name}:0:2}}",
            f"${{{name}: -1}}",
            f"$(({self.sum()}))",
            f"${{{self.one(*LISTS)}[{self.one('0', '1', '-1', 'P', '$Q')}]}}",
            f"${{#{self.one(*LISTS)}[@]}}",
            "$1",
            "${2:-two}",
            "$#",
            f'${{{name}:-"q  r"}}',
            f"${{{name}:-'a b' c}}",
            f"${{{name}:+${{{other}:-{self.one('d', chr(34) + '$P e' + chr(34))}}}}}",
            "${!name}",
            f"${{{name}/#{self.one('x/y', '/pre-', '--/')}}}",
            f"${{{name}/%{self.one('8/9', '/-post')}}}",
            f"${{{name}:P:Q}}",
            f"${{#{self.one(*LISTS)}}}",
            f"${{{self.one(*LISTS)}[{self.one('P', 'P+1', '$Q', '0')}]:-none}}",
            f"$[{name} + 1]" if name in NUMBERS else "$'q\\t'",
            f"${{T[{self.one('a', 'b', 'k$A', 'x y')}]}}",
            f"${{T[{self.one('a', 'b')}]:-4}}",
            "${#T[@]}",
        )

    def word(self) -> str:
        if self.chance(self.unread):
            return self.one("$(echo 3)", "`echo 4`", '"$(echo a b)"', "${NEVER_SET}")
        kind = self.random.randrange(9)
        if kind < 2:
            return self.one(*_PLAIN) or '""'
        if kind == 2:
            return f"'{self.one(*_QUOTED)}'"
        if kind == 3:
            before, behind = self.one("", "x ", "$ ", "it's "), self.one("", " y", "\\$A")
            return f'"{before}{self.reference()}{behind}"'
        if kind == 4:
            return self.reference()
        if kind == 5:
            return f"{self.one('--a=', 'p', '')}{self.reference()}{self.one('_c', '-d', '', '.e')}"
        if kind == 6:
            return self.one("\\$A", "a\\ b", "\\\\", 'x"y"z', "$'t\\tn'", "a'b'\"c\"", "x\\\ny", "~x~", "a:b", "\\#")
        if kind == 7:
            return f'"{self.reference()}"{self.reference()}'
        return self.one(
            '"${L[@]#x}"',
            '"${!L[@]}"',
            '"${M[@]^^}"',
            '"${M[@]:0:1}"',
            '${L[@]+"${L[@]}"}',
            '"${L[@]:-e f}"',
            '"${*:1}"',
            '"${L[@]}"',
            "${M[@]}",
            '"${M[*]}"',
            '"x${L[@]}y"',
            '"$@"',
            "$*",
            '"${L[@]:1}"',
            '"${M[@]/a/b}"',
        )

    def words(self) -> str:
        found = [self.word() for _ in range(self.random.randrange(4))]
        if self.chance(12):
            found.append(self.one("{a,b}c", "n{1..3}", "{3..1}", "{$A,z}", "a{b,{c,d}}", "{x}", "{01..03}", "pre{,x}"))
        return " ".join(found)

    def sum(self) -> str:
        name, other = self.one(*NUMBERS), self.one(*NUMBERS)
        number = str(self.random.randrange(1, 20))
        return self.one(
            f"{name} + {number}",
            f"{name}*{other}",
            f"({name} - {other}) * 2",
            f"${name}+1",
            f"{name} > {other} ? {number} : {other}",
            f"-{name} % {number}",
            f"{name} / {number}",
            f"{name}++ + 1",
            f"{other} = {name} + 2",
            f"{name} += {number}",
            f"!{name} || {other} && 1",
            f"{name} << 2 | 1",
            f"{name} == {other}",
            "0x1f + 010",
            f"~{name} & 0xff",
            f"{name} ** 2",
            f"${{#A}} * {name}",
            f"{name}++, {other} -= 2, {other}",
            f"${{#L[@]}} + {number}" if self.chance(30) else f"--{name} + {other}++",
            f"({name} & 3 ^ {other}) >= {number} ? {name} = 1 : ({other} |= 2)",
            f"{name} *= -1",
            f"16#ff - 2#101 + {name}",
            f"{name} && ({other} = 5) || {number}",
            "",
        )

    # --- conditions

    def condition(self) -> str:
        if self.chance(self.unread):
            return self.one("[ -d /nowhere ]", "[[ $(echo 1) == 1 ]]", "grep -q x /dev/null", "[[ -f /nowhere ]]")
        name, other = self.one(*TEXTS), self.one(*TEXTS, *NUMBERS)
        number, second = self.one(*NUMBERS), self.random.randrange(9)
        return self.one(
            "true",
            "false",
            ":",
            f'[ "${name}" = "${other}" ]',
            f'[ "${name}" != x ]',
            f'[ -z "${name}" ]',
            f'[ -n "${name}" ]',
            f'[ -n "${name}" -a 1 = 1 ]',
            f"[ ${{{number}:-0}} -{self.one('eq', 'gt', 'le', 'ne')} {second} ]",
            f"[[ ${name} == {self.one('x*', '*8', '[a-q]*', '?', chr(34) + '*' + chr(34))} ]]",
            f"[[ ${name} != ${other} ]]",
            f"[[ -n ${name} && ( ${number} -gt {second} || ${other} == 8 ) ]]",
            f"[[ ! ${name} = x ]]",
            f"[[ ${{{number}:-0}} -lt {second} ]]",
            f"[[ ${name} =~ ^x ]]",
            f"(({self.sum()}))",
            f"(({number} > {second}))",
            f'test "${name}" = x',
            f"! {self.one('true', 'false', '[ 1 = 1 ]')}",
            f"[[ -z ${{{name}:-}} ]]",
            f'[ "${name}" = "${other}" -o "${name}" = 8 ]',
            f'[ ! "${name}" = x ]',
            f'[ "${{{number}:-0}}" -ge 2 ] && {{ ! false; }}',
            f"[[ ${name} == ${other}* && -n x ]]",
            f'[[ "${name}" =~ {self.one("fp8", "8$", "^x$", "[0-9]+")} ]]',
            f"( [[ ${name} == x ]] )",
            f'{{ false; [ -n "${name}" ]; }}',
            f'true | [ "${name}" = x ]',
            f"let '{self.sum() or 1}'",
            f"[[ {number} -lt {second} || -v {name} ]]",
            f'[ "$#" -gt {self.random.randrange(3)} ]',
            "(( $# == 2 ))",
            f"[[ ${name} = @(x|8*) ]]",
            '[ -n "${T[a]}" ]',
        )

    # --- statements

    def statement(self) -> str:
        simple: list[Callable[[], str]] = [self.assignment] * 8 + [self.number] * 3 + [self.list] * 3
        simple += [self.builtin] * 4 + [self.launch, self.and_or, self.and_or, self.document, self.odd]
        compound = [self.conditional, self.conditional, self.case, self.loop, self.loop, self.function, self.group]
        if self.depth > 2 or self.chance(70):
            return self.random.choice(simple)()
        self.depth += 1
        found = self.random.choice(compound)()
        self.depth -= 1
        return found

    def block(self) -> str:
        return self.one("\n", "; ").join(self.statement_of_block() for _ in range(self.random.randrange(1, 4)))

    def statement_of_block(self) -> str:
        found = self.statement()
        return found if "<<" not in found and "&\n" not in found and "# " not in found else self.assignment()

    def assignment(self) -> str:
        name = self.one(*TEXTS)
        first = f"{name}{self.one('=', '=', '=', '+=')}{self.word()}"
        if self.chance(20):
            first += f" {self.one(*TEXTS)}={self.word()}"
        return f"{self.one('', '', '', 'export ')}{first}"

    def number(self) -> str:
        name = self.one(*NUMBERS)
        return self.one(f"{name}=$(({self.sum()}))", f"(({self.sum()}))", f"let {name}={self.random.randrange(9)}+1")

    def list(self) -> str:
        name = self.one(*LISTS)
        if self.chance(15):
            return f"{name}[{self.one('0', '1', '${#' + name + '[@]}')}]={self.word()}"
        return f"{name}{self.one('=', '+=')}({self.words()})"

    def builtin(self) -> str:
        name = self.one(*TEXTS)
        return self.one(
            f"unset {self.one(*TEXTS, *LISTS)}",
            f": ${{{name}:=given}}",
            f"set -- {self.words()}",
            "shift",
            f'read {name} D <<< "{self.reference()} 7 8"',
            f"eval '{name}=4'",
            f'eval "{name}=\\"{self.one(*_PLAIN)}\\""',
            f'local_{name}=1; declare {name}="{self.reference()}"',
            "read -r -a M <<< '1 2  3'",
            "name=B",
            'T=([a]=1 [b]="$A")',
            f"T[{self.one('a', 'c', 'k$B', 'x y')}]={self.word()}",
            f"T+=([z]={self.word()})",
            "L+=([1]=k)" if self.chance(20) else f"unset 'L[{self.one('0', '1', '-1')}]'",
            f"L=([0]=k {self.word()} [2]=j)" if self.chance(30) else "M=()",
            f"IFS=, read -r {name} D <<< 'a,b'",
            "IFS=,; M=($A); unset IFS",
            f"{self.one('readarray', 'mapfile')} -t M < /dev/null" if self.chance(20) else "shift 2",
            f"declare -i N; N={self.one('2+3', 'P*2')}; {name}=$N",
            f"declare -a {self.one(*LISTS)}; declare {name}",
            f"export {self.one(*TEXTS)} {self.one(*NUMBERS)}={self.random.randrange(9)}",
            f"printf '%s' {self.word()} >/dev/null",
            f": $(({self.sum()}))",
            f'set -- "$@" {self.word()}',
            f"printf -v {name} %s 4" if self.chance(self.unread * 4) else "true",
        )

    def launch(self) -> str:
        return f"{self.one('', f'A={self.word()} ', 'P=7 ')}launch {self.words()} \"$A\" '$A' $P"

    def and_or(self) -> str:
        parts = [self.condition()]
        for _ in range(self.random.randrange(1, 3)):
            parts += [self.one("&&", "||", "&&"), self.one(self.assignment(), self.condition(), self.launch())]
        return " ".join(parts)

    def document(self) -> str:
        end = self.one("END", "'END'", '"END"')
        line = f"it's {self.one('A=8', '$A', '${B:-x}', 'P=$((P+1))', '# x', '(', '&& TP=8')}\nTP=8 \"A\n"
        if self.chance(30):
            return f"cat <<-{end} >/dev/null && {self.assignment()}\n\t{line}\tEND"
        return f"cat >/dev/null <<{end}\n{line}END"

    def odd(self) -> str:
        return self.one(
            f"({self.assignment()}; {self.number()})",
            f"{{ {self.assignment()}; }}",
            f"{self.assignment()} | cat",
            f"echo 5 | read {self.one(*TEXTS)}",
            f"{self.assignment()} # {self.assignment()}",
            "# A=9 && it's",
            f"{self.assignment()} &\nwait",
            f"echo {self.word()} >/dev/null 2>&1; {self.assignment()}",
            f"true; {self.assignment()}; false",
            f"launch {self.words()} | cat",
            f"time {self.assignment()}" if False else f"! {self.assignment()}",
            f"{self.condition()} && {{ {self.assignment()}; {self.number()}; }} || {self.assignment()}",
            f"{self.condition()} || ({self.assignment()})",
            f"cat <<A0 <<B0 >/dev/null; {self.assignment()}\nit's\nA0\nTP=9\nB0",
            f": <<EOD\n${{{self.one(*TEXTS)}:=doc}} $(({self.sum()}))\nEOD",
            f"{self.assignment()} \\\n  {self.one(*TEXTS)}=cont",
            f'{self.one(*TEXTS)}="l1\n$P # no\nl3"',
            f'{self.one(*TEXTS)}="$({self.one(*_SUBSTITUTED)}"' if self.chance(self.unread * 5) else "true",
            f"while read -r A; do {self.assignment()}; done <<< 'x'" if self.chance(self.unread * 5) else ":",
            f"launch {self.words()} > /dev/null",
            f"launch {self.words()} >&2 a",
            "A=1 B=$A launch $A$B",
        )

    def conditional(self) -> str:
        more = self.one("", f" && {self.condition()}", f" || {self.condition()}")
        found = f"if {self.condition()}{more}; then\n{self.block()}\n"
        while self.chance(30):
            found += f"elif {self.condition()}; then {self.block()}\n"
        if self.chance(50):
            found += f"else\n{self.block()}\n"
        return found + "fi"

    def case(self) -> str:
        found = f"case {self.one('$A', chr(34) + '$B' + chr(34), '$P', 'x$C')} in\n"
        for _ in range(self.random.randrange(1, 4)):
            pattern = self.one("x", "8|4", "x*", "*8*", "[0-9]", "fp8 | bf16", "$D", '"$A"', "?", "''", "(a*")
            found += f"  {pattern}) {self.block()} {self.one(';;', ';;', ';;', ';&', ';;&')}\n"
        if self.chance(50):
            found += f"  *) {self.block()};;\n"
        return found + "esac"

    def loop(self) -> str:
        name = self.one(*TEXTS)
        kind = self.random.randrange(4)
        leave = self.one("", "", f"{self.condition()} && {self.one('break', 'continue', 'break 2', 'continue 2')}\n")
        if kind == 0:
            return f"for {name} in {self.words()} 1; do {leave}{self.block()}; done".replace("; ;", ";")
        if kind == 1:
            i = f"i{self.random.randrange(10**6)}"  # its own, or loops within each other have no end
            return f"for (({i} = 0; {i} < {self.random.randrange(4)}; {i}++)); do\n{leave}{self.block()}\ndone"
        if kind == 2:
            count = f"n{self.random.randrange(10**6)}"
            body = f"(({count}+=1)); {leave}{self.block()}"
            return f"{count}=0; while [ ${count} -lt {self.random.randrange(4)} ]; do {body}\ndone"
        if kind == 3 and self.chance(30):
            return f"for {name}; do\n{leave}{self.block()}\ndone"
        if kind == 3 and self.chance(30):
            return f"until true; do {self.block()}; done".replace("; ;", ";")
        return f'for {name} in "${{L[@]}}"; do\n{leave}{self.block()}\ndone'

    def function(self) -> str:
        self.functions += 1
        name = f"f{self.functions}"
        local = self.one("", f"local A={self.word()}\n", "local B P=3\n")
        leave = self.one("", "", f"{self.condition()} && return\n")
        body = f"{local}{leave}{self.block()}"
        call = f"{self.one('', '', 'B=5 ')}{name} {self.words()}"
        call = self.one(
            call, call, f"if {call}; then {self.block()}\nfi", f"{call} || {self.assignment()}", f"{call}; {call}"
        )
        last = self.one("", "", "\nreturn 0", "\nreturn 1", "\nfalse")
        return f"{self.one(f'{name}()', f'function {name}')} {{\n{body}{last}\n}}\n{call}"

    def group(self) -> str:
        return self.one(f"(\n{self.block()}\n)", f"{{\n{self.block()}\n}}")


def by_bash(script: str, directory: str) -> tuple[dict[str, object], list[list[str]]] | None:
    """Variables and lists at the end, and the words of every ``launch``, as bash has them; None where it lasts long."""
    try:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", _PROLOGUE + script + _EPILOGUE],
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:  # lists that double in every turn
        return None
    words = done.stdout.decode().split("\0")[:-1]
    launches = list[list[str]]()
    while words[:1] == ["launch"]:
        count = int(words[1])
        launches.append(words[2 : 2 + count])
        words = words[2 + count :]
    found: dict[str, object] = {}
    for name in (*TEXTS, *NUMBERS) if words else ():
        found[name] = words.pop(0)
    for name in LISTS if words else ():
        count = int(words.pop(0))
        found[name] = words[:count]
        words = words[count:]
    return found, launches
