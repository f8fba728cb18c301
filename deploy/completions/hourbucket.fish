# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_hourbucket_global_optspecs
    string join \n config= h/help V/version
end

function __fish_hourbucket_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_hourbucket_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_hourbucket_using_subcommand
    set -l cmd (__fish_hourbucket_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c hourbucket -n "__fish_hourbucket_needs_command" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -s V -l version -d 'Print version'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "run" -d 'Run the service until SIGTERM or SIGINT; SIGHUP reloads the configuration. Exit code 0: all acknowledged readings are stored, 1: failed, 3: the journal keeps readings that were not stored in time, 78: invalid configuration, so a restart would not help'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "probe" -d 'Check on admin.listen that the running service is alive; exit code 1: it is not'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "check" -d 'Check configuration, connections, server and journal; exit code 1 on a problem'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "init" -d 'Create or update the collections, indexes, validator and view; exit code 1 on a problem. `init config` writes a configuration'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "decode" -d 'Decode a payload from standard input and print the result; exit code 0: at least one reading, 1: none, because of rejects, 3: none, and rightly so (skipped by a rule, empty, or without a value)'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "import" -d 'Import files (CSV, NDJSON, line protocol, any other format) through the running service; exit code 0: everything is stored, 1: some records were rejected, 2: failed. Can be interrupted and repeated: readings are stored once'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "export" -d 'Export stored readings into files (Parquet, CSV, NDJSON), a day or less in each; the service may run, and readings that it has only in memory are not exported; exit code 0: all are exported, 2: failed. Can be interrupted and repeated: it continues behind the last finished file'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "tail" -d 'Show readings as the running service accepts them, and rejects with their reason'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "reconcile" -d 'Compare stored buckets with their readings; exit code 0: all equal (or repaired), 1: they differ, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "convert" -d 'Convert stored buckets from pages to the time-series collection or back; can be interrupted and repeated; exit code 0: done, 1: some were skipped or differ, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "remove" -d 'Remove readings, single values, or sensors wholly, after a confirmation; the service may run. Can be interrupted and repeated; exit code 0: done, 1: something was kept, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "sensors" -d 'Rename, merge or replace sensors: their readings count for another id, and so does what arrives; the service may run. Can be interrupted and repeated; exit code 0: done, 1: something was kept, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "dead-letters" -d 'List, replay or remove dead letters: messages that could not be decoded or stored'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "journal" -d 'Inspect or salvage the journal'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "tokens" -d 'Add, list, revoke or rotate tokens of senders and readers'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "completions" -d 'Print the completion script of a shell'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "config-reference" -d 'Print docs/configuration.md'
complete -c hourbucket -n "__fish_hourbucket_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand run" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand run" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand probe" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand probe" -l ready -d 'Check that it accepts readings'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand probe" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand check" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand check" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -l rollup-from -d 'Also compute the days from this date on (rollup.days), such as 2023-01-01; can be interrupted and repeated, and the service may run' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -l columns-from -d 'Also encode the columns from this date on (columns.enabled); can be interrupted and repeated, and the service may run' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -l shard -d 'Also shard the collections; store.uri must point to a mongos'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -f -a "config" -d 'Write a small commented configuration for your case, from options or a few questions'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and not __fish_seen_subcommand_from config help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l case -d 'Who sends the readings; asked for if it is missing' -r -f -a "broker\t'Devices publish to an MQTT broker that you have'
http\t'Gateways or programs send over HTTP'
devices\t'MQTT devices connect directly, without a broker'
lorawan\t'A LoRaWAN server (ChirpStack, The Things Stack)'"
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l output -d 'Write to this file; - is standard output' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l mongodb -d 'MongoDB without a password [default: mongodb://127.0.0.1:27017/?replicaSet=rs0]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l broker -d 'The broker: mqtt://HOST or mqtts://HOST [default: mqtt://127.0.0.1:1883]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l username -d 'The user at the broker' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l topic -d 'The topics, with the sensor and the field in braces [default: sensors/{sensor_id}/{field}]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l format -d 'What a message contains (see `decode --list`) [default: scalar if the topic has a {field}, else json]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l server -d 'The LoRaWAN server; with --broker over MQTT, otherwise by its webhook' -r -f -a "chirpstack\t''
ttn\t''"
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l listen -d 'The port for senders [default: 0.0.0.0:8080 for HTTP, 0.0.0.0:1883 for devices]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l tokens-file -d 'The file with the tokens of senders; made with a first token if it does not exist' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l journal-dir -d 'The directory of the journal, on a disk that survives a restart' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from config" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from help" -f -a "config" -d 'Write a small commented configuration for your case, from options or a few questions'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand init; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l format -d 'A built-in format (json, ndjson, scalar, line, ...), a shipped profile such as zigbee2mqtt, or one of [formats.NAME] in the configuration; --list shows all. Without it, all formats are tried, and those that fit are shown with what they would store, the best first' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l topic -d 'The MQTT topic of the message' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l template -d 'The subscription\'s topic template, such as sensors/{sensor_id}/{field}' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l ts-unit -d 'Unit of numeric times: s, ms, us, ns, or auto for by magnitude [default: auto; ns for line]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l birth -d 'A file with the birth of a Sparkplug node or device, which defines the aliases of its data' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -l list -d 'Only list the formats'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand decode" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l format -d 'csv, ndjson, line, parquet (of `export`), or a format of the service (see `decode --list`) [default: by the name: .csv, .tsv, .ndjson, .jsonl, .lp, .parquet, .json]. A file in another format than the first four is one payload, unless --per-line is given' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l ts-unit -d 'Unit of numeric times: s, ms, us or ns [default: by magnitude; line protocol: ns]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l sensor-id -d 'The sensor of readings that name none' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l topic -d 'The topic, for a format that reads it' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l batch -d 'Readings of one request' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l state-dir -d 'Keep the state of each file here [default: beside it, FILE.import]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l patience -d 'How long to wait for a service that is away or busy' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l from -d 'Replace from this time on: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l to -d 'Replace up to this time, exclusive' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l url -d 'The service, such as https://collector.example:8080 [default: this machine, the port of the configuration]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l token-file -d 'A file with a token, as `tokens add` prints it' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l ca-file -d 'Trust these CA certificates (PEM), not those of Mozilla\'s list' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l delimiter -d 'The separator of columns: one character, or tab [default: a comma; for .tsv a tab]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l skip-lines -d 'Lines before the header' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l sensor -d 'The column of the sensor id [default: sensor_id, sensor, device_id or device]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l time -d 'The column of the time; repeated (date and time), they are joined by a space [default: ts, time, timestamp, datetime or date]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l time-format -d 'How the time is written, such as \'%d.%m.%Y %H:%M:%S\' [default: RFC 3339 and its variants, or a number]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l zone -d 'The time zone of times without an offset, such as Europe/Berlin [default: limits.zone of the service]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l value -d 'A column of values, and its field if it is not the column\'s name; can be repeated [default: all other columns]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l field -d 'For one value per row: the column with the name of the field; --value is then the column of its value' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l tag -d 'A column of tags; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l per-line -d 'Each line is a payload of the format, such as the messages of a webhook'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l restart -d 'Begin each file again; stored readings are not stored twice'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l replace -d 'Afterwards, remove what else is stored of the sensors between the first and the last reading of the files (lines, CSV or Parquet). Needs store.uri, as `remove` does'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l dry-run -d 'Only show how many readings would be replaced'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l yes -d 'Replace without asking'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l no-header -d 'The first row is data; columns have numbers only, and --value needs names (COLUMN=NAME)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l decimal-comma -d 'Numbers are written 1.234,5'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -l latin1 -d 'The file is in ISO 8859-1, not UTF-8'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand import" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l from -d 'Readings from this time on: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l to -d 'Only readings before this time' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l sensor -d 'Only sensors whose id matches; * matches any characters. Can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l tag -d 'Only sensors that have this tag now. Can be repeated: they have all of them' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l format -d 'How the files are written; `import` reads all of them' -r -f -a "parquet\t'A row for each reading, a column for each field'
csv\t'The same as text'
ndjson\t'A line for each reading, in the native format'"
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -s o -l output -d 'The directory of the files: DAY-NUMBER.FORMAT, each when it is complete. It is created, or has an export with the same parameters, which is continued' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand export" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l sensor -d 'Only sensors whose id matches; * matches any characters' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l url -d 'The service, such as https://collector.example:8080 [default: this machine, the port of the configuration]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l token-file -d 'A file with a token, as `tokens add` prints it' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l ca-file -d 'Trust these CA certificates (PEM), not those of Mozilla\'s list' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -l json -d 'Print JSON, one object per line, also on a terminal'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tail" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l from -d 'Start with the bucket of this time: RFC 3339, or a date in UTC [default: a day before --to]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l to -d 'Only buckets that start before this time [default: the start of the current bucket]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l sensor -d 'Only this sensor; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l list -d 'List at most N findings; all are counted' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l repair -d 'Repair what can be repaired; the service may run'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l drop-duplicates -d 'Remove all but one of equal readings in buckets that ended an hour ago. Do not use it if sensors send readings without their own time: these may be equal. On servers before MongoDB 7.0, which delete whole series only, a time-series bucket becomes pages; do not run `convert --into timeseries` at the same time'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l ignore-duplicates -d 'Do not search for equal readings'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -l json -d 'Print one JSON document'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand reconcile" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l into -d 'The storage mode to convert to' -r -f -a "timeseries\t'Measurements of the time-series collection'
bucket\t'Pages that contain their readings'"
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l from -d 'Start with the bucket of this time: RFC 3339, or a date in UTC [default: the first bucket]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l to -d 'Only buckets that start before this time and ended an hour ago [default: all that ended an hour ago]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l sensor -d 'Only this sensor; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -l drop-leftovers -d 'With --into bucket on a server before MongoDB 7.0: delete the measurements of sensors whose buckets are all pages; no hourbucket may write in time-series mode at the same time'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand convert" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l sensor -d 'Of these sensors: an id, or a pattern in which `*` stands for any text; can be repeated. Without --from, --to, --field and --where, the sensors are removed wholly' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l from -d 'Only readings at or after this time: RFC 3339, or a date in UTC [default: the first one]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l to -d 'Only readings before this time [default: the last one that is an hour old]' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l field -d 'Only the values of this field; a reading that has no other value is removed' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l where -d 'Only readings for which this holds: FIELD OP VALUE, joined by `and`, such as \'temp < -100\'. OP is one of < <= > >= == !=, VALUE a number, true, false or \'text\'' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l dry-run -d 'Only show what would be removed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -l yes -d 'Remove without asking'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand remove" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -f -a "rename" -d 'Give a sensor another id, which has no readings yet; readings that still come with the old id count for the new one'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -f -a "merge" -d 'Join two sensors: the readings of the first one count for the second one, equal ones once'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -f -a "replace" -d 'Continue the history of a device with the readings of its successor, from a time on; the sensor keeps the old id'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and not __fish_seen_subcommand_from rename merge replace help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from rename" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from rename" -l dry-run -d 'Only show what would be moved'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from rename" -l yes -d 'Move without asking'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from rename" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from merge" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from merge" -l dry-run -d 'Only show what would be moved'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from merge" -l yes -d 'Move without asking'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from merge" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from replace" -l at -d 'From when on readings of the successor count: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from replace" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from replace" -l dry-run -d 'Only show what would be moved'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from replace" -l yes -d 'Move without asking'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from replace" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from help" -f -a "rename" -d 'Give a sensor another id, which has no readings yet; readings that still come with the old id count for the new one'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from help" -f -a "merge" -d 'Join two sensors: the readings of the first one count for the second one, equal ones once'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from help" -f -a "replace" -d 'Continue the history of a device with the readings of its successor, from a time on; the sensor keeps the old id'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand sensors; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -f -a "list" -d 'Print dead letters, newest first, one JSON object per line'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -f -a "replay" -d 'Decode dead letters again with the current settings, store their readings, and remove each dead letter of which everything was accepted; the service may run. Exit code 0: none remain, 1: some remain (listed on standard error), 2: failed. Can be interrupted and repeated: readings are stored once. Dead letters that their senders were not allowed to write are replayed only with --reason not_allowed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -f -a "purge" -d 'Remove the dead letters that match all given filters'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and not __fish_seen_subcommand_from list replay purge help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l reason -d 'With this reason, such as too_old; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l source -d 'From mqtt, mqtt_direct, http or store; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l topic -d 'With a matching topic; * matches any text, ? one character' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l since -d 'Received at or after this time: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l until -d 'Received before this time' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l limit -d 'The maximum number printed' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l reason -d 'With this reason, such as too_old; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l source -d 'From mqtt, mqtt_direct, http or store; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l topic -d 'With a matching topic; * matches any text, ? one character' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l since -d 'Received at or after this time: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l until -d 'Received before this time' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from replay" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l reason -d 'With this reason, such as too_old; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l source -d 'From mqtt, mqtt_direct, http or store; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l topic -d 'With a matching topic; * matches any text, ? one character' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l since -d 'Received at or after this time: RFC 3339, or a date in UTC' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l until -d 'Received before this time' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l older-than -d 'Only those older than this, such as 7d or 12h' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l all -d 'Remove all dead letters; requires --yes'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -l yes -d 'Confirm --all'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from purge" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from help" -f -a "list" -d 'Print dead letters, newest first, one JSON object per line'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from help" -f -a "replay" -d 'Decode dead letters again with the current settings, store their readings, and remove each dead letter of which everything was accepted; the service may run. Exit code 0: none remain, 1: some remain (listed on standard error), 2: failed. Can be interrupted and repeated: readings are stored once. Dead letters that their senders were not allowed to write are replayed only with --reason not_allowed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from help" -f -a "purge" -d 'Remove the dead letters that match all given filters'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand dead-letters; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and not __fish_seen_subcommand_from inspect salvage help" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and not __fish_seen_subcommand_from inspect salvage help" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and not __fish_seen_subcommand_from inspect salvage help" -f -a "inspect" -d 'List segments and damage; makes no changes'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and not __fish_seen_subcommand_from inspect salvage help" -f -a "salvage" -d 'Move damaged segments aside and keep their readable contents; the service must be stopped'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and not __fish_seen_subcommand_from inspect salvage help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from inspect" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from inspect" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from salvage" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from salvage" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from help" -f -a "inspect" -d 'List segments and damage; makes no changes'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from help" -f -a "salvage" -d 'Move damaged segments aside and keep their readable contents; the service must be stopped'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand journal; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -f -a "add" -d 'Add a token and print it: id.secret. The secret is not shown again'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -f -a "list" -d 'List the tokens with their rules and when they were last used; exit code 1 if the file cannot be used'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -f -a "revoke" -d 'Remove a token'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -f -a "rotate" -d 'Give a token a new secret and print it; its rules stay'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and not __fish_seen_subcommand_from add list revoke rotate help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l write -d 'A pattern of sensors that it may write, such as \'{id}-*\'; can be repeated; default: all' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l read -d 'A pattern of sensors that it may read; can be repeated; default: all' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l via -d 'Only over this protocol, http or mqtt; can be repeated' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l expires -d 'Not valid from this time on: RFC 3339 with an offset, or a date' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l note -d 'For people' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l rate -d 'Readings per second' -r
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l file -d 'The tokens file; default: http.tokens_file, or listen.mqtt.tokens_file, of the configuration' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l certificate -d 'The entry is for the client certificate with this name, and has no secret; the id may have 128 characters, also . : @ / | + ='
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l no-write -d 'It may not write'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l no-read -d 'It may not read'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -l forward -d 'It is of an instance that forwards what others have sent to it, also history'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -l last-used -d 'Where a service keeps when they were last used; can be repeated, for several services; default: last-used.json in journal.dir of the configuration' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -l file -d 'The tokens file; default: http.tokens_file, or listen.mqtt.tokens_file, of the configuration' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -l json -d 'One JSON array'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -l all -d 'Also those that were used and have no entry: names in JWTs and client certificates, and revoked tokens'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from revoke" -l file -d 'The tokens file; default: http.tokens_file, or listen.mqtt.tokens_file, of the configuration' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from revoke" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from revoke" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from rotate" -l file -d 'The tokens file; default: http.tokens_file, or listen.mqtt.tokens_file, of the configuration' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from rotate" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from rotate" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from help" -f -a "add" -d 'Add a token and print it: id.secret. The secret is not shown again'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from help" -f -a "list" -d 'List the tokens with their rules and when they were last used; exit code 1 if the file cannot be used'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from help" -f -a "revoke" -d 'Remove a token'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from help" -f -a "rotate" -d 'Give a token a new secret and print it; its rules stay'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand tokens; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand completions" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand completions" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand config-reference" -l config -d 'The configuration file [default: config/hourbucket.toml, if it exists]' -r -F
complete -c hourbucket -n "__fish_hourbucket_using_subcommand config-reference" -s h -l help -d 'Print help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "run" -d 'Run the service until SIGTERM or SIGINT; SIGHUP reloads the configuration. Exit code 0: all acknowledged readings are stored, 1: failed, 3: the journal keeps readings that were not stored in time, 78: invalid configuration, so a restart would not help'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "probe" -d 'Check on admin.listen that the running service is alive; exit code 1: it is not'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "check" -d 'Check configuration, connections, server and journal; exit code 1 on a problem'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "init" -d 'Create or update the collections, indexes, validator and view; exit code 1 on a problem. `init config` writes a configuration'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "decode" -d 'Decode a payload from standard input and print the result; exit code 0: at least one reading, 1: none, because of rejects, 3: none, and rightly so (skipped by a rule, empty, or without a value)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "import" -d 'Import files (CSV, NDJSON, line protocol, any other format) through the running service; exit code 0: everything is stored, 1: some records were rejected, 2: failed. Can be interrupted and repeated: readings are stored once'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "export" -d 'Export stored readings into files (Parquet, CSV, NDJSON), a day or less in each; the service may run, and readings that it has only in memory are not exported; exit code 0: all are exported, 2: failed. Can be interrupted and repeated: it continues behind the last finished file'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "tail" -d 'Show readings as the running service accepts them, and rejects with their reason'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "reconcile" -d 'Compare stored buckets with their readings; exit code 0: all equal (or repaired), 1: they differ, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "convert" -d 'Convert stored buckets from pages to the time-series collection or back; can be interrupted and repeated; exit code 0: done, 1: some were skipped or differ, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "remove" -d 'Remove readings, single values, or sensors wholly, after a confirmation; the service may run. Can be interrupted and repeated; exit code 0: done, 1: something was kept, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "sensors" -d 'Rename, merge or replace sensors: their readings count for another id, and so does what arrives; the service may run. Can be interrupted and repeated; exit code 0: done, 1: something was kept, 2: failed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "dead-letters" -d 'List, replay or remove dead letters: messages that could not be decoded or stored'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "journal" -d 'Inspect or salvage the journal'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "tokens" -d 'Add, list, revoke or rotate tokens of senders and readers'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "completions" -d 'Print the completion script of a shell'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "config-reference" -d 'Print docs/configuration.md'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and not __fish_seen_subcommand_from run probe check init decode import export tail reconcile convert remove sensors dead-letters journal tokens completions config-reference help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from init" -f -a "config" -d 'Write a small commented configuration for your case, from options or a few questions'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from sensors" -f -a "rename" -d 'Give a sensor another id, which has no readings yet; readings that still come with the old id count for the new one'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from sensors" -f -a "merge" -d 'Join two sensors: the readings of the first one count for the second one, equal ones once'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from sensors" -f -a "replace" -d 'Continue the history of a device with the readings of its successor, from a time on; the sensor keeps the old id'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from dead-letters" -f -a "list" -d 'Print dead letters, newest first, one JSON object per line'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from dead-letters" -f -a "replay" -d 'Decode dead letters again with the current settings, store their readings, and remove each dead letter of which everything was accepted; the service may run. Exit code 0: none remain, 1: some remain (listed on standard error), 2: failed. Can be interrupted and repeated: readings are stored once. Dead letters that their senders were not allowed to write are replayed only with --reason not_allowed'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from dead-letters" -f -a "purge" -d 'Remove the dead letters that match all given filters'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from journal" -f -a "inspect" -d 'List segments and damage; makes no changes'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from journal" -f -a "salvage" -d 'Move damaged segments aside and keep their readable contents; the service must be stopped'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from tokens" -f -a "add" -d 'Add a token and print it: id.secret. The secret is not shown again'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from tokens" -f -a "list" -d 'List the tokens with their rules and when they were last used; exit code 1 if the file cannot be used'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from tokens" -f -a "revoke" -d 'Remove a token'
complete -c hourbucket -n "__fish_hourbucket_using_subcommand help; and __fish_seen_subcommand_from tokens" -f -a "rotate" -d 'Give a token a new secret and print it; its rules stay'
