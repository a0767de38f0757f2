"""Programs that nobody tuned Ebb for: many languages with their own collectors, many allocators, compressors and tools."""

from program import HEAP, Program, java, summed


def languages():
    text = ("text", 120_000)
    javac = ["javac", "-d", "{scratch}", "{here}/Allocations.java"]
    go = ["go", "build", "-o", "{scratch}/maps-go", "{here}/maps.go"]
    # It writes beside its source.
    ocaml = ["sh", "-c", "cp {here}/maps.ml {scratch}/ && ocamlopt -o {scratch}/maps-ml {scratch}/maps.ml"]
    ghc = ["ghc", "-v0", "-O", "-outputdir", "{scratch}/hs", "-o", "{scratch}/Trees", "{here}/Trees.hs"]
    rustc = ["rustc", "-O", "--edition", "2021", "-o", "{scratch}/words-rs", "{here}/words.rs"]
    gfortran = ["gfortran", "-O2", "-o", "{scratch}/waves", "{here}/waves.f90"]
    return [
        Program("perl, words", 70, ["perl", "{here}/words.pl", "{input}"], ["perl"], reads=text),
        Program("gawk, words", 87, ["gawk", "-f", "{here}/words.awk", "{input}"], ["gawk"], reads=("text", 40_000)),
        Program("python, graph", 61, ["{python}", "{here}/graph.py", "60000"], []),
        Program("pypy3, graph", 102, ["pypy3", "{here}/graph.py", "90000"], ["pypy3"]),
        Program("lua, orders", 113, ["lua5.4", "{here}/orders.lua", "80000", "2"], ["lua5.4"]),
        Program("luajit, orders", 130, ["luajit", "{here}/orders.lua", "90000", "3"], ["luajit"]),
        Program("ruby, ledger", 78, ["ruby", "{here}/ledger.rb", "150000", "3"], ["ruby"]),
        Program("php, records", 78, ["php", "{here}/records.php", "80000"], ["php"]),
        Program("node, 2 workers", 175, ["node", *HEAP, "{here}/workers.js", "2", "60000", "300000"], ["node"]),
        Program("java, parallel collector", 213, java("Parallel", 192, "2", "80000", "800000"), ["java", "javac"], javac),
        Program("java, G1", 219, java("G1", 192, "2", "80000", "800000"), ["java", "javac"], javac),
        Program("go, maps", 117, ["{scratch}/maps-go", "2", "100000", "800000"], ["go", "gcc"], go),
        Program("ocaml, maps", 77, ["{scratch}/maps-ml", "200000", "150000"], ["ocamlopt"], ocaml),
        Program("haskell, map", 92, ["{scratch}/Trees", "500000", "600000"], ["ghc"], ghc),
        Program("sbcl, tables", 147, ["sbcl", "--script", "{here}/tables.lisp", "200000", "1000000"], ["sbcl"]),
        Program("guile, trees", 91, ["guile", "--no-auto-compile", "{here}/trees.scm", "60000", "60000"], ["guile"]),
        # In half of what it needs neither side is short of RAM for long.
        Program("prolog, facts", 78, ["swipl", "{here}/facts.prolog", "200000"], ["swipl"], part=0.45),
        Program("erlang, processes", 247, ["escript", "{here}/processes.escript", "25", "8000", "12"], ["escript"]),
        Program("R, frames", 202, ["Rscript", "--vanilla", "{here}/frames.R", "200000"], ["Rscript"]),
        Program("rust, words", 69, ["{scratch}/words-rs", "280000", "560000"], ["rustc"], rustc),
        Program("fortran, waves", 91, ["{scratch}/waves", "2000", "25"], ["gfortran"], gfortran),
    ]


def tools():
    text = ("text", 90_000)
    group = "group_by(.at.x) | map({{n: length, s: (map(.at.y) | add)}})"
    pack = "pack-objects --all --no-reuse-delta --window=30 --threads=1 -q --stdout"
    # The picture has the time in a comment.
    picture = "+O- +FP8 +W320 +H240 +WT1 -D -GA"
    page = "-q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=ppmraw -r600 -dMaxBitmap=400000000 -sOutputFile=-"
    return [
        Program("g++, templates", 257, summed("g++ -std=c++17 -O1 -S -o - -x c++ {input}"), ["g++"], reads=("templates", 10)),
        Program("sqlite, indexes", 72, ["sh", "-c", "sqlite3 :memory: < {here}/index.sql"], ["sqlite3"]),
        Program("jq, objects", 222, summed(f"jq -c '{group}' {{input}}"), ["jq"], reads=("objects", 150_000)),
        Program("git, pack", 126, summed(f"git -C {{input}} {pack} < /dev/null"), ["git"], reads=("commits", 12)),
        Program("brotli, large window", 117, summed("brotli -q 9 --large_window=26 -c {input}"), ["brotli"], reads=text),
        Program("7z, LZMA2", 82, summed("7z a -txz -mx=5 -md=16m -mmt=2 -si -so x < {input}"), ["7z"], reads=text),
        Program("zstd, long", 92, summed("zstd -q -19 --long=26 -c < {input}"), ["zstd"], reads=("text", 60_000)),
        Program("povray, spheres", 93, summed(f"povray +I{{input}} {picture} 2>/dev/null | sed '/^# /d'"), ["povray"], reads=("scene", 90_000)),
        Program("ghostscript, page", 108, summed(f"gs {page} {{input}}"), ["gs"], reads=("drawing", 12_000)),
    ]


def cases(quick):
    if quick:
        return [
            # In less of so little the kernel kills them.
            Program("perl, words", 29, ["perl", "{here}/words.pl", "{input}"], ["perl"], reads=("text", 30_000), part=0.85),
            Program("python, graph", 32, ["{python}", "{here}/graph.py", "32000"], [], part=0.85),
        ]
    return languages() + tools()
