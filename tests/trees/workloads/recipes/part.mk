part$(PART).sums: part$(PART).sorted part$(PART).numbers part$(PART).lines.gz
	(for file in part$(PART).sorted part$(PART).numbers; do sha256sum < $$file; done; \
	 gzip -dc part$(PART).lines.gz | sha256sum) > $@

part$(PART).lines: lines.py
	/usr/bin/python3 lines.py $(PART) $(LINES) > $@

part$(PART).sorted: part$(PART).lines
	sort -S 64M --parallel=1 $< > $@

part$(PART).numbers: part$(PART).lines
	/usr/bin/python3 -c 'import sys; rows = [line.split() for line in sys.stdin]; rows.sort(key=lambda row: (row[1], row[0])); print("\n".join(row[0] for row in rows))' < $< > $@

part$(PART).lines.gz: part$(PART).lines
	gzip -n -9 -c $< > $@
