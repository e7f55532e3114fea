"""What runs measured: records, selection, statistics, tables, figures and the page. Never imports torch."""
