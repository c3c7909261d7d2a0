"""What a pair does on this machine: workloads, arms, measurement, statistics, and how they are shown.

    workloads ──► measuring ◄── arms        environment: machine, files, memory
                     │ runs
                     ▼
                 statistics ──► table (stdout), records (JSON, CSV), report (HTML; plots)

`pydflash2.cli.bench` puts them together; docs/benchmarks.md says how to read what comes out.
"""
