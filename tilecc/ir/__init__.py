"""The intermediate representation: data structures, text form, rules, execution."""
