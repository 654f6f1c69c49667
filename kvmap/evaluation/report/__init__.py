"""What an evaluation found, for somebody who has never seen the project: a page and its parts."""
