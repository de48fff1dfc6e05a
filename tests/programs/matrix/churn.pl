# A large hash, a long string under a regular expression, a fork, a pipe.
use strict;
my $n = 35_000 * shift;
my %h = map { "k" . ($_ * 7919 % 400009) => "v" x ($_ % 40) . $_ } 1 .. $n;
my $t = 0;
$t = ($t * 31 + length $h{$_}) % 1000000007 for sort keys %h;
print scalar(keys %h), " $t\n";
my $s = join ",", map { $_ * 7 % 1001 } 1 .. 4 * $n;
$s =~ s/(\d+),(\d+)/$2,$1/g;
print unpack("%32C*", $s), " ", length $s, "\n";
$| = 1;
my $child = fork;
if (!$child) { $h{x} = 1; print scalar(keys %h), "\n"; exit 3 }
waitpid $child, 0;
print $? >> 8, " ", scalar(keys %h), "\n";
print `echo sub | tr a-z A-Z`;
