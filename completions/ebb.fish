# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_ebb_global_optspecs
    string join \n h/help V/version
end

function __fish_ebb_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_ebb_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_ebb_using_subcommand
    set -l cmd (__fish_ebb_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c ebb -n "__fish_ebb_needs_command" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_needs_command" -s V -l version -d 'Print the version of Ebb, and end'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "run" -d 'Run a program within a memory budget'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "ps" -d 'Show the programs under Ebb, and the memory they hold'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "top" -d 'Show them live, with the last minutes'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "set" -d 'Change the budget of a running program'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "reclaim" -d 'Take memory from a running program now'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "advise" -d 'Say how much RAM a program needs, and what less would cost'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "metrics" -d 'Export metrics for Prometheus'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "doctor" -d 'Say whether this host allows Ebb, and what to change'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "locks" -d 'Show where the threads of a running program wait in Ebb'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "swapon" -d 'Add a swap device to a running process, or show its devices'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "swapoff" -d 'Remove a swap device from a running process'
complete -c ebb -n "__fish_ebb_needs_command" -f -a "help" -d 'Print what `ebb COMMAND --help` prints'
complete -c ebb -n "__fish_ebb_using_subcommand run" -l ram -d 'The budget of all processes together' -r
complete -c ebb -n "__fish_ebb_using_subcommand run" -l swap -d 'Where to put pages that do not fit into RAM: file:DIR, or none' -r
complete -c ebb -n "__fish_ebb_using_subcommand run" -l thp -d 'Which memory gets huge pages: never, advise, always or host' -r -f -a "never\t''
advise\t''
always\t''
host\t''"
complete -c ebb -n "__fish_ebb_using_subcommand run" -l idle -d 'Move memory that was unused for this long out of RAM' -r
complete -c ebb -n "__fish_ebb_using_subcommand run" -l show-ram -d 'How much RAM the programs take the machine to have' -r
complete -c ebb -n "__fish_ebb_using_subcommand run" -l name -d 'Name for `ebb ps` and other commands' -r -f
complete -c ebb -n "__fish_ebb_using_subcommand run" -l stats -d 'Write all counters to FILE as JSON when PROGRAM ends' -r -F
complete -c ebb -n "__fish_ebb_using_subcommand run" -l report -d 'Write a page about the run to FILE, for a browser' -r -F
complete -c ebb -n "__fish_ebb_using_subcommand run" -l allow-unmanaged -d 'Run PROGRAM without Ebb if Ebb cannot manage it'
complete -c ebb -n "__fish_ebb_using_subcommand run" -l no-allow-unmanaged
complete -c ebb -n "__fish_ebb_using_subcommand run" -s q -l quiet -d 'Print no summary and no warnings'
complete -c ebb -n "__fish_ebb_using_subcommand run" -l no-quiet
complete -c ebb -n "__fish_ebb_using_subcommand run" -s v -l verbose -d 'Print more'
complete -c ebb -n "__fish_ebb_using_subcommand run" -l no-verbose
complete -c ebb -n "__fish_ebb_using_subcommand run" -l no-config -d 'Ignore the options in files and in EBB_OPTIONS'
complete -c ebb -n "__fish_ebb_using_subcommand run" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -s o -l columns -d 'Show these columns; `-o help` lists them' -r
complete -c ebb -n "__fish_ebb_using_subcommand ps" -l json -d 'Print the same as JSON, sizes in bytes'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -l bytes -d 'Show sizes in bytes'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -l noheadings -d 'Show no headings'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -s v -l verbose -d 'Also show what each tier holds, and what left because nobody used it'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -l validate -d 'Only check whether all figures agree; print those that do not'
complete -c ebb -n "__fish_ebb_using_subcommand ps" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand top" -s d -l delay -d 'Time between two looks, 0.1 to 3600. Default: 2' -r
complete -c ebb -n "__fish_ebb_using_subcommand top" -s n -l iterations -d 'End after N frames' -r
complete -c ebb -n "__fish_ebb_using_subcommand top" -s b -l batch -d 'Print frames as plain text, without a terminal'
complete -c ebb -n "__fish_ebb_using_subcommand top" -l no-color -d 'Show no colors, as if the variable NO_COLOR were set'
complete -c ebb -n "__fish_ebb_using_subcommand top" -l ascii -d 'Draw with ASCII alone'
complete -c ebb -n "__fish_ebb_using_subcommand top" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand set" -l ram -d 'The new budget, as for `ebb run`' -r
complete -c ebb -n "__fish_ebb_using_subcommand set" -l thp -d 'Which memory gets huge pages from now on, as for `ebb run`' -r -f -a "never\t''
advise\t''
always\t''
host\t''"
complete -c ebb -n "__fish_ebb_using_subcommand set" -l idle -d 'How long memory stays in RAM unused from now on, as for `ebb run`' -r
complete -c ebb -n "__fish_ebb_using_subcommand set" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand reclaim" -l to -d 'Where the memory goes, if not where it would go by itself' -r -f -a "pool\t''
cold\t''
device\t''"
complete -c ebb -n "__fish_ebb_using_subcommand reclaim" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l ram -d 'The budget of all processes together' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l swap -d 'Where to put pages that do not fit into RAM: file:DIR, or none' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l thp -d 'Which memory gets huge pages: never, advise, always or host' -r -f -a "never\t''
advise\t''
always\t''
host\t''"
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l idle -d 'Move memory that was unused for this long out of RAM' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l show-ram -d 'How much RAM the programs take the machine to have' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l name -d 'Name for `ebb ps` and other commands' -r -f
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l stats -d 'Write all counters to FILE as JSON when PROGRAM ends' -r -F
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l report -d 'Write a page about the run to FILE, for a browser' -r -F
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l goal -d 'Also say which is the smallest budget for this' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l json -d 'Also write the advice to FILE as JSON' -r -F
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l for -d 'How long to watch a running program. Default: 30s' -r
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l allow-unmanaged -d 'Run PROGRAM without Ebb if Ebb cannot manage it'
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l no-allow-unmanaged
complete -c ebb -n "__fish_ebb_using_subcommand advise" -s q -l quiet -d 'Print no summary and no warnings'
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l no-quiet
complete -c ebb -n "__fish_ebb_using_subcommand advise" -s v -l verbose -d 'Print more'
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l no-verbose
complete -c ebb -n "__fish_ebb_using_subcommand advise" -l no-config -d 'Ignore the options in files and in EBB_OPTIONS'
complete -c ebb -n "__fish_ebb_using_subcommand advise" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand metrics" -l listen -d 'Answer HTTP at ADDRESS (127.0.0.1:9841, unix:PATH) until you stop it' -r -f
complete -c ebb -n "__fish_ebb_using_subcommand metrics" -l textfile -d 'Write DIR/ebb.prom, for the textfile collector of node_exporter' -r -f -a "(__fish_complete_directories)"
complete -c ebb -n "__fish_ebb_using_subcommand metrics" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand doctor" -l seccomp-profile -d 'Print a seccomp profile for containers of docker, podman or k8s' -r -f -a "docker\t''
podman\t''
k8s\t''"
complete -c ebb -n "__fish_ebb_using_subcommand doctor" -l json -d 'Print the same as JSON'
complete -c ebb -n "__fish_ebb_using_subcommand doctor" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand locks" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand swapon" -l show -d 'Show the swap devices of one process or of all'
complete -c ebb -n "__fish_ebb_using_subcommand swapon" -l bytes -d 'Show sizes in bytes'
complete -c ebb -n "__fish_ebb_using_subcommand swapon" -l noheadings -d 'Show no headings'
complete -c ebb -n "__fish_ebb_using_subcommand swapon" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand swapoff" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
complete -c ebb -n "__fish_ebb_using_subcommand help" -s h -l help -d 'Print help, and end: -h is a summary, --help says everything'
