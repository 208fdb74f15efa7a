"""Tables, findings and pages of each type of study and of other commands, in one file each."""
